"""All-reduce and all-gather between two hosts, on the engine and on gloo, over a link of a rate.

    python benchmarks/between_hosts.py --gbit 1 --devices 1
    python benchmarks/between_hosts.py --devices 4      # a link without a rate

The hosts are network namespaces of this machine (as in ``tests/faults/hosts.py``), each with one
process; ``tc`` shapes both directions. Engine and gloo take turns. A row shows the least seconds of
a call in a compiled loop, the bytes that host 0 sent for one call (of which TCP, TLS and the frames
are a part), and, where the link has a rate, the share of it that what has to cross takes: for an
all-reduce as many bytes as one device's array has, for an all-gather those of all of its devices.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
TIMEOUT = 600


def sent() -> int:
    """Bytes that this host has sent so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    raise SystemExit("no eth0: not one of the benchmark's hosts")


def measure(devices: int, repeats: int) -> None:
    """Inside a process of the job: prints a line for each operation and size."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    jax.distributed.initialize()
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    count = jax.device_count()
    bodies = {
        "all-reduce": lambda a: jax.lax.psum(a, "x") / count,
        "all-gather": lambda a: jax.lax.all_gather(a, "x")[(jax.lax.axis_index("x") + 1) % count],
    }
    for name, body in bodies.items():
        for size in SIZES:
            times = max(1, min(200, (8 << 20) // size))

            def loop(a, body=body, times=times):
                return jax.lax.fori_loop(0, times, lambda _, b: body(b), a)

            spread = jax.shard_map(
                loop, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
            )
            run = jax.jit(spread)
            make = jax.jit(
                lambda size=size: jnp.ones(count * size // 4),
                out_shardings=jax.NamedSharding(mesh, P("x")),
            )
            array = make()
            run(array).block_until_ready()
            seconds, before = [], sent()
            for _ in range(repeats):
                start = time.perf_counter()
                run(array).block_until_ready()
                seconds.append((time.perf_counter() - start) / times)
            crossed = (sent() - before) / repeats / times
            row = {"op": name, "bytes": size, "seconds": min(seconds), "sent": crossed}
            print("ROW", json.dumps(row), flush=True)


def run(engine: bool, options: argparse.Namespace) -> list[dict[str, float]]:
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "tests")]
    two_hosts = importlib.import_module("hosts").two_hosts
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        for host in range(2):
            if options.gbit:
                hosts.shape(host, f"{options.gbit}gbit")
            if engine:
                hosts.write_key(host)
        inner = ("--inner", "--devices", str(options.devices), "--repeats", str(options.repeats))
        processes = [hosts.start(host, Path(__file__), *inner) for host in range(2)]
        if [process.wait(TIMEOUT) for process in processes] != [0, 0]:
            raise SystemExit(hosts.said(0) + hosts.said(1))
        return [json.loads(" ".join(words[1:])) for words in hosts.lines(0, "ROW")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gbit", type=float, default=0, help="of the link; 0: as it is")
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        return measure(options.devices, options.repeats)
    engine, gloo = run(True, options), run(False, options)
    names = ("engine us", "gloo us", "ratio", "sent", "gloo")
    print(f"{'':<12}{'bytes':>10}" + "".join(f"{name:>12}" for name in names))
    for ours, theirs in zip(engine, gloo, strict=True):
        least = ours["bytes"] * (options.devices if ours["op"] == "all-gather" else 1)
        share = least / ours["seconds"] / (options.gbit * 1e9 / 8) if options.gbit else None
        print(
            f"{ours['op']:<12}{ours['bytes']:>10}{ours['seconds'] * 1e6:>12.0f}"
            f"{theirs['seconds'] * 1e6:>12.0f}{theirs['seconds'] / ours['seconds']:>12.2f}"
            f"{ours['sent']:>12.0f}{theirs['sent']:>12.0f}"
            + (f"{share:>8.2f}" if share is not None else "")
        )
    if options.json:
        options.json.write_text(json.dumps({"engine": engine, "gloo": gloo}, indent=1) + "\n")


if __name__ == "__main__":
    main()
