"""lockstep.linalg beside ScaLAPACK and beside jax.scipy on one process: ratios of one run.

    python benchmarks/linalg.py --routines posv potri syevd --sizes 1024 2048
    python benchmarks/linalg.py --gpu          # on a machine with a GPU: beside cuSOLVER, same card

ScaLAPACK is Debian's (libscalapack-openmpi-dev); its driver, scalapack.c, is compiled here, and the
best of several block sizes and grids counts. Every matrix is diagonally dominant for the positive
definite routines, and random for the others. The first call is compilation and is told apart; the
seconds are medians of the rest. Memory is what the resident size of process 0 grows by at most in
calls after the first, operands included, as a multiple of its share of operands and results. Every
process uses one thread, except that of jax.scipy alone, which uses them all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROUTINES = ("posv", "potri", "syevd")


def _matrix(n: int, dtype: Any, dominant: bool, sharding: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def make() -> Any:
        i = jnp.arange(n, dtype=jnp.uint32)
        low, high = jnp.minimum(i[:, None], i), jnp.maximum(i[:, None], i)
        h = (high * jnp.uint32(2654435761)) ^ (low * jnp.uint32(40503) + jnp.uint32(977))
        h = (h ^ (h >> 15)) * jnp.uint32(2246822519)
        h = h ^ (h >> 13)
        a = h.astype(dtype) / 4294967296.0 - 0.5
        return a + n * (i[:, None] == i) if dominant else a

    return jax.jit(make, out_shardings=sharding)()


def _calls(routine: str, distributed: bool) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp
    import jax.scipy.linalg

    import lockstep.linalg as la

    if distributed:
        ours = {
            "posv": lambda a, b: la.potrs(a, b, donate=True),
            "potri": lambda a, b: la.potri(a),
            "syevd": lambda a, b: la.syevd(a),
        }
        return ours[routine]
    scipy = jax.scipy.linalg
    alone = {
        "posv": lambda a, b: scipy.cho_solve(scipy.cho_factor(a, lower=True), b),
        "potri": lambda a, b: scipy.cho_solve(scipy.cho_factor(a, lower=True), jnp.eye(len(a))),
        "syevd": lambda a, b: jnp.linalg.eigh(a, symmetrize_input=False),
    }
    return jax.jit(alone[routine])


def worker(routine: str, n: int, rhs: int, dtype: str, distributed: bool, repeats: int) -> None:
    """Measures one routine in this job; process 0 prints one line of JSON."""
    import lockstep  # isort: skip
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    if distributed and "LOCKSTEP_NUM_PROCESSES" in os.environ:
        lockstep.initialize()
    jax.config.update("jax_enable_x64", dtype == "float64")
    devices = jax.devices() if distributed else jax.devices()[:1]
    mesh = jax.make_mesh((len(devices),), ("x",), (AxisType.Auto,), devices=devices)
    b = jax.device_put(np.ones((n, rhs), dtype), NamedSharding(mesh, P()))
    call, seconds, before = _calls(routine, distributed), [], 0
    for i in range(repeats + 1):
        if i == 1:  # what compilation took is not counted
            Path("/proc/self/clear_refs").write_text("5")
            before = _resident("VmRSS")
        a = _matrix(n, dtype, routine != "syevd", NamedSharding(mesh, P("x")))
        jax.block_until_ready(a)
        start = time.perf_counter()
        jax.block_until_ready(call(a, b))
        seconds.append(time.perf_counter() - start)
        del a
    if jax.process_index() == 0:
        numbers = n * (n + rhs) if routine == "posv" else 2 * n * n
        share = numbers * np.dtype(dtype).itemsize / jax.process_count()
        peak = (_resident("VmHWM") - before) / share
        best = {"first": seconds[0], "seconds": statistics.median(seconds[1:]), "peak": peak}
        print(json.dumps(best), flush=True)


def _resident(field: str) -> int:
    """Bytes of resident memory of this process: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith(field))


def _run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **env}, timeout=1200
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def measure(options: argparse.Namespace, routine: str, n: int, distributed: bool) -> dict:
    arguments = [str(HERE), "--worker", routine, "--sizes", str(n), "--rhs", str(options.rhs)]
    arguments += ["--dtype", options.dtype, "--repeats", str(options.repeats)]
    if not distributed:
        out = _run([sys.executable, *arguments, "--alone"], {})
    elif options.gpu:
        out = _run([sys.executable, *arguments], {})
    else:
        sizes = ["-n", str(options.processes), "-d", str(options.devices)]
        launch = [sys.executable, "-m", "lockstep", "run", *sizes, *arguments]
        out = _run(launch, {"OPENBLAS_NUM_THREADS": "1"})
    [line] = [x for x in out.splitlines() if '"seconds"' in x]
    return json.loads(line[line.index("{") :])


def scalapack(options: argparse.Namespace, routine: str, n: int) -> float | None:
    """The best median over block sizes and grids; None without ScaLAPACK."""
    if not (shutil.which("mpicc") and shutil.which("mpirun")) or options.dtype != "float64":
        return None
    with tempfile.TemporaryDirectory() as folder:
        binary = str(Path(folder) / "scalapack")
        library = "-lscalapack-openmpi"
        built = subprocess.run(
            ["mpicc", "-O2", str(HERE.with_name("scalapack.c")), "-o", binary, library],
            capture_output=True,
            text=True,
        )
        if built.returncode:
            print(f"no ScaLAPACK: {built.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        found = []
        ranks = options.processes
        for block in (32, 64, 128):
            for grid in {(1, ranks), (ranks, 1)}:
                command = ["mpirun", "--oversubscribe", "-n", str(ranks)]
                command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
                command += [binary, routine, str(n), str(options.rhs), str(block)]
                command += [*map(str, grid), str(options.repeats)]
                out = _run(command, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
                found.append(statistics.median(map(float, out.split())))
        return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[1024, 2048])
    parser.add_argument("--rhs", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1, help="devices of each process")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true", help="all GPUs of this process, beside one")
    parser.add_argument("--worker", choices=ROUTINES, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        [n] = options.sizes
        distributed = not options.alone
        worker(options.worker, n, options.rhs, options.dtype, distributed, options.repeats)
        return
    heads = ("ours s", "first s", "peak/share", "/ScaLAPACK", "/one")
    print(f"{'routine':8}{'n':>6}" + "".join(f"{head:>12}" for head in heads))
    for routine in options.routines:
        for n in options.sizes:
            ours = measure(options, routine, n, True)
            one = measure(options, routine, n, False)
            peer = None if options.gpu else scalapack(options, routine, n)
            against = "-" if peer is None else f"{peer / ours['seconds']:.2f}"
            print(
                f"{routine:8}{n:6}{ours['seconds']:12.3f}{ours['first']:12.1f}"
                f"{ours['peak']:12.1f}{against:>12}"
                f"{one['seconds'] / ours['seconds']:12.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
