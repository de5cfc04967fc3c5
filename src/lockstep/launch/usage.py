"""What the help of ``lockstep run`` and ``lockstep worker`` says beside the options. Pure."""

from __future__ import annotations

import argparse

FORMS = "(script.py | -m module | -c code | -) [args ...]"
_USAGE = f"%(prog)s [options] {FORMS}"
_FORMS = """\
  script.py [args ...]   a file; what stands behind it is passed to it
  -m module [args ...]   a module or a package, as for python -m
  -c code [args ...]     the code itself
  - [args ...]           the code is read from standard input (lockstep run only)
"""
RUN_EXAMPLES = """\
examples:
  lockstep run -n 2 -d 4 train.py --lr 0.1
  lockstep run --hosts a:4,b:4 --max-restarts 3 train.py
  lockstep run -n 2 --auto-init -m pytest tests/
  lockstep run -n 2 --auto-init -c 'import jax; print(jax.devices())'
"""
WORKER_EXAMPLES = """\
examples:
  srun -n 12 lockstep worker train.py
  mpirun -n 4 lockstep worker -d 2 --grace 60 train.py
"""
_HASH_SEED = (
    "All processes get PYTHONHASHSEED=0 unless it is set already. So they iterate over a set of\n"
    "strings in the same order, and collectives in such a loop match."
)


def parser(command: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser without options, whose help describes the program and ends with ``examples``."""
    made = argparse.ArgumentParser(
        prog=f"lockstep {command}",
        usage=_USAGE,
        description=description,
        epilog=f"{examples}\n{_HASH_SEED}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument_group("program", _FORMS)
    return made
