"""ScaLAPACK beside `linalg`: its driver, scalapack.c, compiled and run by mpirun."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().with_name("scalapack.c")


def output_of(command: list[str], env: dict[str, str]) -> str:
    """What the command prints; ends this process where it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **env}, timeout=1200
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class ScaLAPACK:
    """Its driver, compiled; the block size and the grid are searched once for each problem."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.ranks, self.repeats = options.processes, options.repeats
        self.binary: str | None = str(Path(folder) / "scalapack")
        self.best: dict[tuple[str, tuple[int, int]], tuple[int, tuple[int, int]]] = {}
        tools = shutil.which("mpicc") and shutil.which("mpirun")
        if options.gpu or not tools or options.dtype != "float64":
            self.binary = None
            return
        command = ["mpicc", "-O2", str(SOURCE), "-o", self.binary, "-lscalapack-openmpi"]
        built = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if built.returncode:
            lines = built.stderr.strip().splitlines()
            why = next((line for line in lines if "error" in line), lines[-1])
            print(f"no ScaLAPACK: {why}", file=sys.stderr)
            self.binary = None

    def seconds(self, routine: str, n: tuple[int, int], rhs: str) -> float | None:
        """The least of the repeats with the best block size and grid; None without ScaLAPACK."""
        if self.binary is None or routine == "polar":
            return None
        if (routine, n) not in self.best:
            grids = sorted({(1, self.ranks), (self.ranks, 1)})
            found = {
                (block, grid): self._run(routine, n, rhs, block, grid, 1)
                for block in (32, 64, 128)
                for grid in grids
            }
            self.best[routine, n] = min(found, key=found.__getitem__)
        # One more, for its first call is slower too.
        return self._run(routine, n, rhs, *self.best[routine, n], self.repeats + 1)

    def _run(
        self,
        routine: str,
        size: tuple[int, int],
        rhs: str,
        block: int,
        grid: tuple[int, int],
        repeats: int,
    ) -> float:
        command = ["mpirun", "--oversubscribe", "-n", str(self.ranks)]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command += [str(self.binary), routine, *map(str, size), rhs, str(block)]
        command += [*map(str, grid), str(repeats)]
        out = output_of(command, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
        return min(map(float, out.split()))
