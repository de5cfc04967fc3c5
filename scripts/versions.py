"""Runs a part of the tests under several releases of Python and jax, and writes the table of it.

    python scripts/versions.py                       every cell (make versions)
    python scripts/versions.py --corners             oldest and newest, few cases (.ci/run)
    python scripts/versions.py --python 3.12 --jax 0.11.0 --groups engine faults
    python scripts/versions.py --jobs 2              two at a time
    python scripts/versions.py --write               also into docs/reference/versions.md

What Lockstep relies on in jaxlib is not a public interface: a new release is tried here before it
is called supported. Builds one wheel of the working tree, and installs it into an environment for
each Python and jax; these stay in build/versions/. Run it with the interpreter of `.venv`, which
has what builds the wheel. The exit status is 1 when a case failed or did not run.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from version_matrix import environments, table
from version_matrix.cases import (
    EXTRAS,
    GROUPS,
    JAX,
    NEEDS,
    PYTHON,
    cases,
    choose,
    numbers,
    supports,
)
from version_matrix.cells import Ran, run_cell

CORNERS_SECONDS = 1800
"""A bound for hangs, in CI; three minutes are usual."""
PAGE = environments.ROOT / "docs" / "reference" / "versions.md"


def main() -> int:
    arguments = _arguments()
    if arguments.corners:
        environments.limit(CORNERS_SECONDS)
    pythons, missing = _interpreters(arguments.python or list(PYTHON))
    if not pythons:
        print("No interpreter found, so nothing can be run.", file=sys.stderr)
        return 1
    newest = environments.newest_jax(pythons[max(pythons, key=numbers)], JAX[-1])
    chosen = _chosen(arguments, list(pythons), newest)
    when, wheel = _when(), environments.build_wheel()

    def cell(pair: tuple[str, str]) -> dict[str, Ran]:
        python, jax = pair
        wanted = cases(jax, arguments.corners)
        groups = {group: wanted[group] for group in arguments.groups}
        return _cell(pythons[python], python, jax, wheel, groups)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        ran = dict(zip(chosen, pool.map(cell, chosen), strict=True))
    text = table.render(ran, arguments.groups, missing)
    print(f"\n{text}\n")
    if arguments.write:
        PAGE.write_text(table.replace(PAGE.read_text(), f"{when}\n\n{text}"))
    return _verdict(ran, missing)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corners", action="store_true", help="oldest and newest, few cases")
    parser.add_argument("--python", nargs="+", choices=PYTHON, help="these, with every jax asked")
    parser.add_argument("--jax", nargs="+", metavar="VERSION", help="these releases of jax")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--jobs", type=int, default=1, help="so many cells at a time (default: 1)")
    parser.add_argument("--write", action="store_true", help=f"the table into docs/{PAGE.name}")
    arguments = parser.parse_args()
    partial = arguments.corners or arguments.python or arguments.jax
    if arguments.write and (partial or len(arguments.groups) < len(GROUPS)):
        parser.error("--write goes with the whole matrix only: the page shows no part of it")
    if arguments.write and _changed():
        parser.error("--write names a commit: commit the changes first")
    return arguments


def _interpreters(wanted: list[str]) -> tuple[dict[str, Path], list[str]]:
    found = {python: environments.interpreter(python) for python in wanted}
    missing = [python for python, path in found.items() if path is None]
    for python in missing:
        print(f"Python {python}: no interpreter found; not run", flush=True)
    return {python: path for python, path in found.items() if path is not None}, missing


def _chosen(
    arguments: argparse.Namespace, pythons: list[str], newest: str
) -> list[tuple[str, str]]:
    if arguments.jax:
        pairs = [(python, jax) for python in pythons for jax in arguments.jax]
        return [pair for pair in pairs if supports(*pair)]
    return choose(pythons, newest, arguments.corners)


def _cell(
    interpreter: Path, python: str, jax: str, wheel: Path, groups: dict[str, tuple[str, ...]]
) -> dict[str, Ran]:
    began = time.monotonic()
    try:
        name = f"python-{python}-jax-{jax}"
        packages = (f"jax=={jax}", f"jaxlib=={jax}", *NEEDS)
        own = environments.environment(name, interpreter, f"{wheel}{EXTRAS}", *packages)
        ran = run_cell(own, name, groups)
    except (environments.Failed, OSError) as error:
        ran = {group: Ran(0, (f"no environment: {error}",)) for group in groups}
    said = ", ".join(f"{group} {table.word(of_group)}" for group, of_group in ran.items())
    print(f"Python {python}, jax {jax} ({time.monotonic() - began:.0f} s): {said}", flush=True)
    return ran


def _git(*words: str) -> str:
    return environments.must(["git", *words], 60).strip()


def _changed() -> bool:
    return bool(_git("status", "--porcelain", "--", "src", "native", "tests", "scripts"))


def _when() -> str:
    commit = _git("rev-parse", "--short=12", "HEAD") + (" with changes" if _changed() else "")
    return f"Run on {datetime.date.today():%-d %B %Y}, at commit {commit}."


def _verdict(ran: table.Cells, missing: list[str]) -> int:
    groups = [of_group for cell in ran.values() for of_group in cell.values()]
    passed, failed = sum(x.passed for x in groups), sum(len(x.failures) for x in groups)
    absent = "".join(f"; Python {python} not run" for python in missing)
    print(f"versions: {passed} passed, {failed} failed in {len(ran)} environments{absent}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (environments.Failed, subprocess.SubprocessError) as error:
        sys.exit(f"versions: {error}")
