"""Runs the engine's programs of checks over several releases of jax and jaxlib.

    python scripts/jaxlib_versions.py --engine PATH/liblockstep.so [--folder DIR] [VERSION ...]

For each version: a virtual environment with that jax (kept in DIR, so that a second run is quick),
and in it `lockstep run` of tests/engine/programs, and of the correct program of tests/faults that
must raise nothing, over this source tree. Prints a table; the exit
status is 1 when any of it failed. What the engine relies on in jaxlib is not a public interface: a
new release is tried here before it is called supported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "engine" / "programs"
SOUND = ROOT / "tests" / "faults" / "programs" / "sound.py"
VERSIONS = ["0.8.0", "0.8.3", "0.9.0", "0.9.2", "0.10.0", "0.10.2"]
# Program -> processes and devices of each. The looks-alike groups come first: they are what breaks.
RUNS = [
    (["meshes.py"], 2, 2),
    (["collectives.py"], 2, 2),
    (["ways.py"], 2, 2),
    (["subsets.py"], 3, 1),
    (["without_frames.py", "all_devices"], 2, 2),
    ([str(SOUND), ""], 2, 2),
    ([str(SOUND), ""], 4, 1),
]
SECONDS = 300


def environment(folder: Path, version: str) -> Path:
    """The interpreter of a virtual environment with this version of jax."""
    home = folder / f"jax-{version}"
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True)
        packages = [f"jax=={version}", f"jaxlib=={version}", "rich"]
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *packages], check=True)
        (home / "installed").touch()
    return python


def verdict(python: Path, engine: Path, program: list[str], n: int, d: int) -> str:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "LOCKSTEP_ENGINE": str(engine),
        "JAX_PLATFORMS": "cpu",
    }
    run = ["-m", "lockstep", "run", "--collective-timeout", "30", "-n", str(n), "-d", str(d)]
    try:
        done = subprocess.run(
            [str(python), *run, *program],
            cwd=PROGRAMS,
            env=environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no end in {SECONDS} s"
    if done.returncode == 0:
        return "ok"
    headline = [line for line in done.stderr.splitlines() if line.startswith("lockstep: ")]
    return headline[0] if headline else f"exit status {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--engine", type=Path, required=True, help="the built liblockstep.so")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "jaxlib-versions")
    options = parser.parse_args()
    failed = False
    for version in options.versions:
        python = environment(options.folder, version)
        for program, n, d in RUNS:
            said = verdict(python, options.engine.resolve(), program, n, d)
            failed |= said != "ok"
            print(f"jax {version:8} {Path(program[0]).name:16} {n} x {d}: {said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
