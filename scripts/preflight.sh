#!/bin/sh
# Says what this machine lacks for a build, before anything is downloaded. Reads PYTHON and CXX.
set -eu

python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null 2>&1; then
  echo "No $python was found. Lockstep needs Python 3.11 or later: make PYTHON=/path/to/python3" >&2
  exit 1
fi
if ! version=$("$python" -c 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])' 2>&1); then
  echo "$python does not run: $version. Another one: make PYTHON=/path/to/python3" >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$version is too old. Lockstep needs 3.11 or later:" \
    "make PYTHON=/path/to/python3.11" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  echo "$python cannot make virtual environments. Debian, Ubuntu: sudo apt install python3-venv" >&2
  exit 1
fi

for compiler in ${CXX:-c++ g++ clang++}; do
  if command -v "$compiler" >/dev/null 2>&1; then
    exit 0
  fi
done
cat "$(dirname "$0")/../native/cmake/no-compiler.txt" >&2
exit 1
