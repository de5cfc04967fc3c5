"""What a process of a job on several hosts costs at its start, and what it holds then.

    python benchmarks/start_between_hosts.py                        # 8 hosts with 4 processes each
    python benchmarks/start_between_hosts.py --hosts 8 --processes 8

The hosts are network namespaces of this machine (as in ``tests/faults/hosts.py``). One job after
the other, over the engine (TLS), the engine with ``--no-encryption`` and gloo: each process joins
the job, runs an all-reduce of 1 KiB and one of 1 MiB, and tells how much processor time it has
used, how much memory it has, and how many descriptors and TCP connections. A row shows the median
of all processes of all rounds, and the most; every other round has the opposite order, and a first
job, of gloo, does not count: it finds cold caches. The seconds until all are done depend on how
many processes share a core.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JOBS = {
    "tls": {},
    "plain": {"LOCKSTEP_ENCRYPTION": "0"},
    "gloo": {"LOCKSTEP_COLLECTIVES": "gloo"},
}
COLUMNS = ("processor s", "memory MiB", "descriptors", "connections")
TIMEOUT = 300


def inner() -> None:
    """In a process of a job."""
    import os
    import resource

    import lockstep

    lockstep.initialize()
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    add = jax.jit(
        jax.shard_map(
            lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P(),
        )
    )  # fmt: skip
    for size in (1 << 10, 1 << 20):
        make = jax.jit(
            lambda n=size: jnp.ones(jax.device_count() * n // 4),
            out_shardings=jax.NamedSharding(mesh, P("x")),
        )
        add(make()).block_until_ready()
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # that of the listing itself
            continue
    tables = [Path(f"/proc/self/net/{t}").read_text().splitlines()[1:] for t in ("tcp", "tcp6")]
    open_ones = {row.split()[9] for table in tables for row in table if row.split()[3] == "01"}
    connections = sum(link.removeprefix("socket:[").rstrip("]") in open_ones for link in links)
    found = [used.ru_utime + used.ru_stime, int(status) / 1024, len(links), connections]
    print("FOUND " + json.dumps(found), flush=True)
    # None leaves before the others have looked.
    add(make()).block_until_ready()


def run_job(
    hosts: Any, options: argparse.Namespace, number: int, name: str
) -> dict[str, list[float]]:
    start = time.monotonic()
    processes = []
    for host in range(options.hosts):
        for local in range(options.processes):
            given = {"MASTER_PORT": str(29500 + number), "JAX_NUM_CPU_DEVICES": "1"}
            processes.append(
                subprocess.Popen(
                    [*hosts.enter(host), sys.executable, str(Path(__file__).resolve()), "--inner"],
                    env=hosts.environ(host, local, options.processes) | given | JOBS[name],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
    try:
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    seconds = time.monotonic() - start
    rows = []
    for output in outputs:
        found = [line for line in output.splitlines() if line.startswith("FOUND ")]
        if not found:
            raise SystemExit(f"a process of {name} has failed:\n{output}")
        rows.append(json.loads(found[0].removeprefix("FOUND ")))
    columns = zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)
    return {"seconds": [seconds]} | dict(columns)


def show(results: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'':<8}" + "".join(f"{name:>20}" for name in COLUMNS) + f"{'all, s':>10}")
    for name, found in results.items():
        cells = [f"{statistics.median(found[c]):.2f} ({max(found[c]):.2f})" for c in COLUMNS]
        print(f"{name:<8}" + "".join(f"{cell:>20}" for cell in cells), end="")
        print(f"{statistics.median(found['seconds']):>10.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--processes", type=int, default=4, help="of each host")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        return inner()
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "tests")]
    some_hosts = importlib.import_module("hosts").some_hosts
    print(f"{options.hosts} hosts with {options.processes} processes each: median (most)")
    results: dict[str, dict[str, list[float]]] = {name: {} for name in JOBS}
    with tempfile.TemporaryDirectory() as folder, some_hosts(Path(folder), options.hosts) as hosts:
        for host in range(options.hosts):
            hosts.write_key(host)
        run_job(hosts, options, 0, "gloo")
        for turn in range(options.rounds):
            for number, name in enumerate(list(JOBS)[:: -1 if turn % 2 else 1]):
                port = 1 + turn * len(JOBS) + number
                for column, values in run_job(hosts, options, port, name).items():
                    results[name].setdefault(column, []).extend(values)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
