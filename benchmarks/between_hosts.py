"""Collectives between hosts: the engine with and without encryption, and gloo, in one run.

    python benchmarks/between_hosts.py                    # two hosts, a link without a rate
    python benchmarks/between_hosts.py --hosts 8 --ops all-reduce
    python benchmarks/between_hosts.py --gbit 1 --devices 4

The hosts are network namespaces of this machine (as in ``tests/faults/hosts.py``), each with one
process of each of three jobs: the engine (TLS), the engine with ``--no-encryption``, and gloo. The
jobs run at the same time and take turns at each cell, so that what else the machine does meets all
three. A row shows the least microseconds of a call in a compiled loop, how many times faster than
gloo the engine is, and the bytes that host 0 sent for one call, as a multiple of one device's
array. With ``--gbit``, the last columns are the shares of the link's rate that the bytes which have
to cross take.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute")
JOBS = {
    "tls": {},
    "plain": {"LOCKSTEP_ENCRYPTION": "0"},
    "gloo": {"LOCKSTEP_COLLECTIVES": "gloo"},
}
BYTES_OF_A_ROUND = 2 << 20
"""Of one device's array, in all calls of a round."""


def sent() -> int:
    """Bytes that this host has sent so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    raise SystemExit("no eth0: not one of the benchmark's hosts")


def body_of(op: str, count: int) -> Callable[[Any], Any]:
    """What maps a device's array to one of its size."""
    import jax
    import jax.numpy as jnp

    shift = [(i, (i + 1) % count) for i in range(count)]
    return {
        "all-reduce": lambda a: jax.lax.psum(a, "x") / count,
        "all-gather": lambda a: jax.lax.all_gather(a, "x")[(jax.lax.axis_index("x") + 1) % count],
        "reduce-scatter": lambda a: (
            jnp.tile(jax.lax.psum_scatter(a, "x", tiled=True), count) / count
        ),
        "all-to-all": lambda a: jax.lax.all_to_all(a.reshape(count, -1), "x", 0, 0).reshape(
            a.shape
        ),
        "permute": lambda a: jax.lax.ppermute(a, "x", shift),
    }[op]


def serve() -> None:
    """Inside a process of a job: runs the cell that each line names, and prints what it took."""
    import lockstep

    lockstep.initialize()
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    count = jax.device_count()

    @functools.cache
    def prepared(op: str, size: int, times: int) -> tuple[Any, Any]:
        body = body_of(op, count)
        loop = jax.shard_map(
            lambda a: jax.lax.fori_loop(0, times, lambda _, b: body(b), a),
            mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False,
        )  # fmt: skip
        make = jax.jit(
            lambda: jnp.ones(count * size // 4), out_shardings=jax.NamedSharding(mesh, P("x"))
        )
        run, array = jax.jit(loop), make()
        run(array).block_until_ready()
        return run, array

    for line in sys.stdin:
        op, size, times = line.split()
        run, array = prepared(op, int(size), int(times))
        before, start = sent(), time.perf_counter()
        run(array).block_until_ready()
        seconds = time.perf_counter() - start
        print(json.dumps([seconds / int(times), (sent() - before) / int(times)]), flush=True)


@contextlib.contextmanager
def job(hosts: Any, options: argparse.Namespace, number: int, name: str, log: Any) -> Iterator[Any]:
    """The processes of one job, one on each host."""
    script = [sys.executable, str(Path(__file__).resolve()), "--inner"]
    # As a launcher sets them: after `initialize`, JAX takes no number of devices any more.
    given = {"JAX_NUM_CPU_DEVICES": str(options.devices), "PYTHONHASHSEED": "0"}
    given["MASTER_PORT"] = str(29500 + number)
    processes = [
        subprocess.Popen(
            [*hosts.enter(host), *script],
            env=hosts.environ(host) | given | JOBS[name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        for host in range(options.hosts)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def cell(processes: Any, op: str, size: int) -> tuple[float, float]:
    """Seconds of a call, and bytes that host 0 sends for it."""
    times = max(1, min(100, BYTES_OF_A_ROUND // size))
    for process in processes:
        process.stdin.write(f"{op} {size} {times}\n")
        process.stdin.flush()
    answers = [process.stdout.readline() for process in processes]
    if not all(answers):
        raise SystemExit("a process of the benchmark has ended")
    seconds, crossed = json.loads(answers[0])
    return seconds, crossed


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "tests")]
    some_hosts = importlib.import_module("hosts").some_hosts
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(some_hosts(folder, options.hosts))
        log = stack.enter_context((folder / "log").open("w+"))
        for host in range(options.hosts):
            hosts.write_key(host)
            if options.gbit:
                hosts.shape(host, f"{options.gbit}gbit")
        jobs = {
            name: stack.enter_context(job(hosts, options, number, name, log))
            for number, name in enumerate(JOBS)
        }
        try:
            for op in options.ops:
                for size in SIZES:
                    found = {name: [] for name in JOBS}
                    for _ in range(options.repeats):
                        for name, processes in jobs.items():
                            found[name].append(cell(processes, op, size))
                    rows.append({"op": op, "bytes": size} | {n: min(f) for n, f in found.items()})
                    show(rows[-1], options)
        except SystemExit:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
    return rows


def show(row: dict[str, Any], options: argparse.Namespace) -> None:
    gloo = row["gloo"][0]
    line = f"{row['op']:<15}{row['bytes']:>10}"
    line += "".join(f"{row[name][0] * 1e6:>11.0f}" for name in JOBS)
    line += "".join(f"{gloo / row[name][0]:>8.2f}" for name in ("tls", "plain"))
    line += "".join(f"{row[name][1] / row['bytes']:>8.2f}" for name in JOBS)
    if options.gbit:
        least = row["bytes"] * (options.devices if row["op"] == "all-gather" else 1)
        line += "".join(f"{least / row[name][0] / (options.gbit * 1e9 / 8):>7.2f}" for name in JOBS)
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gbit", type=float, default=0, help="of the link; 0: as it is")
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        return serve()
    print(f"{'us a call':<25}" + "".join(f"{name:>11}" for name in JOBS), end="")
    print(f"{'gloo/tls':>10}{'/plain':>6}   sent: " + " ".join(JOBS))
    rows = measure(options)
    for name in ("tls", "plain"):
        ratios = [row["gloo"][0] / row[name][0] for row in rows]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{name}: {mean:.2f} times as fast as gloo in the mean, least {min(ratios):.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
