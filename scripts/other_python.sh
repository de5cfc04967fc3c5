#!/bin/sh
# other_python.sh PYTHON VENV: prints PYTHON's version, such as 3.12, if VENV was made by another one.
set -u
made=$(sed -n 's/^version\(_info\)\{0,1\} *= *\([0-9]*\.[0-9]*\).*/\2/p' "$2/pyvenv.cfg" 2>/dev/null | head -n 1)
asked=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
if [ -n "$made" ] && [ -n "$asked" ] && [ "$made" != "$asked" ]; then
  echo "$asked"
fi
