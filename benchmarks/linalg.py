"""lockstep.linalg beside ScaLAPACK and beside jax.scipy on one process: ratios of one run.

    python benchmarks/linalg.py --routines posv potri syevd --sizes 1024 2048
    python benchmarks/linalg.py --routines posv --sizes 4096 8192 --rhs 1 64 --rounds 3
    python benchmarks/linalg.py --routines qr gels --sizes 4096 65536x256
    python benchmarks/linalg.py --gpu          # on a machine with a GPU: beside cuSOLVER, same card

On a GPU, jax.numpy on one device is cuSOLVER, and where jaxmg is installed (`pip install
'jaxmg[cuda13]'`, one process with one GPU) it is measured too, with tiles of 256.

ScaLAPACK is Debian's (libscalapack-openmpi-dev with libopenblas0-pthread; with Debian's plain BLAS
it is ten times as slow); its driver, scalapack.c, is compiled here, and the best of several block
sizes and grids counts. Every matrix is diagonally dominant for the positive
definite routines, and random for the others. The first call is compilation and is told apart; the
seconds are the least of the rest. Memory is the peak of what process 0 has in memory (VmHWM) over
what it had before the matrix was made, as a multiple of its share of operands and results; on a
GPU it is the peak of device memory (JAX's memory_stats) over all calls. Every process uses one
thread of OpenBLAS and is held to its share of the cores (`--bind cores`), as
mpirun does it unasked, except that of jax.scipy alone, which uses them all.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalapack import ScaLAPACK, output_of

HERE = Path(__file__).resolve()
ROUTINES = (
    "posv",
    "potri",
    "gesv",
    "syevd",
    "syevd_values",
    "sygvx",
    "qr",
    "gels",
    "gesvd",
    "gesvd_values",
    "polar",
)
DOMINANT = ("posv", "potri")
WITH_B = ("posv", "gesv", "gels")
NOT_OF_JAXMG = ("potri", "sygvx")
DTYPES = ("float32", "float64", "complex64", "complex128")
TILE = 256
"""The tile of jaxmg. Source: its example of potrs."""
PEAKS = 2
"""Further calls of which the memory is measured. What was free is given back to the system before
each, which costs time: ScaLAPACK's driver keeps its memory from one call to the next."""


def _matrix(m: int, n: int, dtype: Any, routine: str, sharding: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def make() -> Any:
        i, j = jnp.arange(m, dtype=jnp.uint32)[:, None], jnp.arange(n, dtype=jnp.uint32)
        low, high = jnp.broadcast_arrays(i, j)
        if routine != "gesv":
            low, high = jnp.minimum(low, high), jnp.maximum(low, high)

        def numbers(seed: int) -> Any:
            h = (high * jnp.uint32(2654435761)) ^ (low * jnp.uint32(40503) + jnp.uint32(seed))
            h = (h ^ (h >> 15)) * jnp.uint32(2246822519)
            h = h ^ (h >> 13)
            return h.astype(dtype) / 4294967296.0 - 0.5

        a = numbers(977)
        if dtype.startswith("complex"):
            # Symmetric numbers become the imaginary parts of a Hermitian matrix.
            sign = 1 if routine == "gesv" else jnp.sign(j.astype(int) - i.astype(int))
            a += 1j * sign * numbers(31)
        return a + n * (i == j) if routine in DOMINANT else a

    return jax.jit(make, out_shardings=sharding)()


def _calls(routine: str, by: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp
    import jax.scipy.linalg

    import lockstep.linalg as la

    if by == "jaxmg":
        return _of_jaxmg(routine)
    if by == "lockstep":
        ours = {
            "posv": lambda a, b: la.potrs(a, b, donate=True),
            "potri": lambda a, b: la.potri(a),
            "syevd": lambda a, b: la.syevd(a),
            "syevd_values": lambda a, b: la.eigvalsh(a),
            "gesv": lambda a, b: la.solve(a, b, donate=True),
            "sygvx": lambda a, b: la.eigh(a, b),
            "qr": lambda a, b: la.qr(a, donate=True),
            "gels": lambda a, b: la.least_squares(a, b),
            "gesvd": lambda a, b: la.svd(a, False),
            "gesvd_values": lambda a, b: la.svdvals(a),
            "polar": lambda a, b: la.polar(a),
        }
        return ours[routine]
    scipy = jax.scipy.linalg
    alone = {
        "posv": lambda a, b: scipy.cho_solve(scipy.cho_factor(a, lower=True), b),
        "potri": lambda a, b: scipy.cho_solve(scipy.cho_factor(a, lower=True), jnp.eye(len(a))),
        "syevd": lambda a, b: jnp.linalg.eigh(a, symmetrize_input=False),
        "syevd_values": lambda a, b: jnp.linalg.eigvalsh(a, symmetrize_input=False),
        "gesv": jnp.linalg.solve,
        "sygvx": _generalized_alone,
        "qr": lambda a, b: jnp.linalg.qr(a),
        "gels": _least_squares_alone,
        "gesvd": lambda a, b: jnp.linalg.svd(a, full_matrices=False),
        "gesvd_values": lambda a, b: jnp.linalg.svd(a, compute_uv=False),
        "polar": lambda a, b: scipy.polar(a),
    }
    return jax.jit(alone[routine])


def _of_jaxmg(routine: str) -> Callable[..., Any]:
    """Its calls, which donate their operands: b is used again."""
    import jaxmg  # pyright: ignore[reportMissingImports]

    return {
        "posv": lambda a, b: jaxmg.potrs(a, b.copy(), TILE),
        "gesv": lambda a, b: jaxmg.lu_solve(a, b.copy(), TILE),
        "syevd": lambda a, b: jaxmg.syevd(a, TILE),
        "syevd_values": lambda a, b: jaxmg.syevd(a, TILE, return_eigenvectors=False),
        "qr": lambda a, b: jaxmg.qr(a, TILE),
        "gels": lambda a, b: jaxmg.least_squares(a, b.copy(), TILE),
        "gesvd": lambda a, b: jaxmg.gesvd(a, TILE),
        "gesvd_values": lambda a, b: jaxmg.gesvd(a, TILE, compute_u=False, compute_vh=False),
        "polar": lambda a, b: jaxmg.polar(a, TILE),
    }[routine]


def _generalized_alone(a: Any, b: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.linalg import solve_triangular

    low = jnp.linalg.cholesky(b, symmetrize_input=False)
    half = solve_triangular(low, a, lower=True)
    c = solve_triangular(low, half.conj().T, lower=True)
    values, vectors = jnp.linalg.eigh(c, symmetrize_input=False)
    return values, solve_triangular(low, vectors, trans=2, lower=True)


def _least_squares_alone(a: Any, b: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.linalg import solve_triangular

    q, r = jnp.linalg.qr(a)
    return solve_triangular(r, q.conj().T @ b)


def worker(options: argparse.Namespace) -> None:
    """Measures one routine in this job; process 0 prints one line of JSON for each width of b."""
    import lockstep  # isort: skip
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    distributed = options.by != "jax"
    if distributed and "LOCKSTEP_NUM_PROCESSES" in os.environ:
        lockstep.initialize()
    jax.config.update("jax_enable_x64", options.dtype in ("float64", "complex128"))
    devices = jax.devices() if distributed else jax.devices()[:1]
    mesh = jax.make_mesh((len(devices),), ("x",), (AxisType.Auto,), devices=devices)
    [(m, n)], routine = options.sizes, options.worker
    rows = NamedSharding(mesh, P("x"))
    for rhs in options.rhs:
        if routine == "sygvx":
            b = _matrix(n, n, options.dtype, "posv", rows)
        else:
            b = jax.device_put(np.ones((m, rhs), options.dtype), NamedSharding(mesh, P()))
        call, seconds, peaks = _calls(routine, options.by), [], []
        for repeat in range(options.repeats + 1 + PEAKS * (distributed or options.gpu)):
            measured = repeat > options.repeats
            free = _resident() if measured else 0
            a = _matrix(m, n, options.dtype, routine, rows)
            jax.block_until_ready(a)
            reset = _reset_peak() if measured else False
            start = time.perf_counter()
            found = jax.block_until_ready(call(a, b))
            seconds.append(time.perf_counter() - start)
            if measured:
                arrays = [*jax.tree.leaves(found), b]
                share = sum(_bytes_here(x) for x in arrays)
                share += len(jax.local_devices()) * m * n // len(devices) * b.dtype.itemsize
                used = _device_peak() or (_resident("VmHWM") - free if reset else float("nan"))
                peaks.append(used / share)
                del arrays
            del a, found
        if jax.process_index() == 0:
            first, *timed = seconds[: options.repeats + 1]
            line = {"first": first, "seconds": min(timed), "peak": max(peaks, default=0)}
            print(json.dumps({"rhs": rhs, **line}), flush=True)


def _resident(what: str = "VmRSS") -> int:
    """Bytes of this process in memory, after the allocator has given back what is free."""
    if what == "VmRSS":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


def _device_peak() -> int:
    """The most bytes that this process has had on its GPUs; 0 on CPUs."""
    import jax

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return sum(one.get("peak_bytes_in_use", 0) for one in stats)


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _bytes_here(x: Any) -> int:
    return sum(shard.data.nbytes for shard in x.addressable_shards)


def measure(
    options: argparse.Namespace, routine: str, size: tuple[int, int], by: str
) -> list[dict]:
    """One launch; a result for each number of right-hand sides."""
    arguments = [
        str(HERE),
        "--worker",
        routine,
        "--sizes",
        "{}x{}".format(*size),
        "--rhs",
        *widths(options, routine),
    ]
    arguments += ["--gpu"] if options.gpu else []
    arguments += ["--dtype", options.dtype, "--repeats", str(options.repeats), "--by", by]
    if by != "lockstep" or options.gpu:
        out = output_of([sys.executable, *arguments], {})
    else:
        sizes = ["-n", str(options.processes), "-d", str(options.devices)]
        launch = [sys.executable, "-m", "lockstep", "run", *sizes, "--bind", "cores", *arguments]
        # XLA needs a thread for each device that waits in a collective, beside those that compute.
        threads = {"NPROC": str(4 * options.devices)} if options.devices > 1 else {}
        out = output_of(launch, {"OPENBLAS_NUM_THREADS": "1", **threads})
    lines = [x for x in out.splitlines() if '"seconds"' in x]
    return [json.loads(line[line.index("{") :]) for line in lines]


def measure_jaxmg(
    options: argparse.Namespace, routine: str, size: tuple[int, int]
) -> list[dict] | None:
    """As `measure`; None where jaxmg is not installed, has no such routine, or fails."""
    if not options.gpu or routine in NOT_OF_JAXMG or not find_spec("jaxmg"):
        return None
    try:
        return measure(options, routine, size, "jaxmg")
    except SystemExit as error:
        print(f"no {routine} of jaxmg: {str(error).splitlines()[-1]}", file=sys.stderr)
        return None


def size_of(text: str) -> tuple[int, int]:
    """(rows, columns) of "N" or "MxN"."""
    m, _, n = text.partition("x")
    return int(m), int(n or m)


def widths(options: argparse.Namespace, routine: str) -> list[str]:
    return [str(k) for k in options.rhs] if routine in WITH_B else ["1"]


def compare(
    options: argparse.Namespace, routine: str, size: tuple[int, int], peer: ScaLAPACK
) -> list[dict]:
    """Ours, the peer's and one process's in turn, ``rounds`` times: the least of each."""
    rows: list[dict] = []
    for _ in range(options.rounds):
        ours, one = (measure(options, routine, size, by) for by in ("lockstep", "jax"))
        peers = measure_jaxmg(options, routine, size) or [None] * len(ours)
        for k, (mine, alone, theirs) in enumerate(zip(ours, one, peers, strict=True)):
            now = {**mine, "routine": routine, "m": size[0], "n": size[1], "one": alone["seconds"]}
            if options.gpu:
                now |= {"one_peak": alone["peak"], "jaxmg": theirs and theirs["seconds"]}
            else:
                now["scalapack"] = peer.seconds(routine, size, str(mine["rhs"]))
            if k == len(rows):
                rows.append(now)
            for key in {"seconds", "one", "jaxmg", "scalapack"} & now.keys():
                known = [row[key] for row in (rows[k], now) if row[key] is not None]
                rows[k][key] = min(known, default=None)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--routines", nargs="+", choices=ROUTINES, default=list(ROUTINES))
    parser.add_argument(
        "--sizes", nargs="+", type=size_of, default=[(1024,) * 2, (2048,) * 2], help="N or MxN"
    )
    parser.add_argument("--rhs", nargs="+", type=int, default=[1], help="for posv, gesv and gels")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1, help="devices of each process")
    parser.add_argument("--dtype", choices=DTYPES, default="float64")
    parser.add_argument("--repeats", type=int, default=3, help="calls of a launch, after the first")
    parser.add_argument("--rounds", type=int, default=1, help="launches of each, in turn")
    parser.add_argument("--json", type=Path, help="write what was measured into this file")
    parser.add_argument("--gpu", action="store_true", help="all GPUs of this process, beside one")
    parser.add_argument("--worker", choices=ROUTINES, help=argparse.SUPPRESS)
    parser.add_argument("--by", choices=("lockstep", "jax", "jaxmg"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    heads = ("ours s", "first s", "peak/share", "/jaxmg" if options.gpu else "/ScaLAPACK", "/one")
    print(f"{'routine':12}{'n':>10}{'rhs':>4}" + "".join(f"{head:>12}" for head in heads))
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        peer = ScaLAPACK(options, folder)
        for routine in options.routines:
            for size in options.sizes:
                found = compare(options, routine, size, peer)
                rows += found
                print("\n".join(map(as_line, found)), flush=True)
                if options.json:  # what was measured stays, where a later one fails
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")


def as_line(row: dict) -> str:
    """One line of the table: ratios above 1 say that we are faster."""
    ours, peer = row["seconds"], row.get("jaxmg", row.get("scalapack"))
    m, n = row["m"], row["n"]
    size = str(n) if m == n else f"{m}x{n}"
    against = "-" if peer is None else f"{peer / ours:.2f}"
    return (
        f"{row['routine']:12}{size:>10}{row['rhs']:4}{ours:12.3f}{row['first']:12.1f}"
        f"{row['peak']:12.2f}{against:>12}{row['one'] / ours:12.2f}"
    )


if __name__ == "__main__":
    main()
