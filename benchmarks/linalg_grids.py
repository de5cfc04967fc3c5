"""What a device sends in factorizations on a line and on a square grid of devices, by count.

    python benchmarks/linalg_grids.py           # 4, 16 and 64 devices: a table
    python benchmarks/linalg_grids.py --json benchmarks/results/linalg_grids.json

Nothing runs: programs for that many CPU devices of one process are compiled, and their collectives
are counted, a loop's as often as it runs. Where a program branches (TSQR of a QR panel that
Cholesky cannot factor), the cheaper branch counts. `grid` is n^2 / sqrt(devices) numbers, the least
growth of a layout that distributes both rows and columns (Irony, Toledo and Tiskin 2004), with the
constant of a panel that is sent along rows and along columns of a square grid.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from pathlib import Path
from typing import Any

BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "u8": 1}
SHAPE = re.compile(r"(f64|f32|s32|u32|pred|u8)\[([\d,]*)\]")
KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf"= (.*?) ({KINDS})\(")
HEAD = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
CALLED = re.compile(
    r"(body|condition|to_apply|calls|true_computation|false_computation)=%([\w.\-]+)"
)
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
Count = tuple[int, float]


def sent(text: str, devices: int) -> Count:
    """(collectives, bytes that a device sends in them) of one run of a compiled program."""
    computations, entry = _computations(text)
    known: dict[str, Count] = {}

    def of(name: str) -> Count:
        if name not in known:
            counts = [_of_line(line, devices, of) for line in computations.get(name, [])]
            known[name] = sum(c[0] for c in counts), sum(c[1] for c in counts)
        return known[name]

    return of(entry)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head.group(1)
            found[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            found[name].append(line)
    return found, entry


def _of_line(line: str, devices: int, of: Any) -> Count:
    if collective := COLLECTIVE.search(line):
        result, kind = collective.groups()
        return 1, _bytes(result, kind, devices)
    called = dict(CALLED.findall(line))
    if branches := BRANCHES.search(line):
        names = [name.strip(" %") for name in branches.group(1).split(",")]
    else:
        names = [called[x] for x in ("true_computation", "false_computation") if x in called]
    if names:
        return min(map(of, names), key=lambda count: count[1])
    if "body" in called:
        trips = TRIPS.search(line)
        times = int(trips.group(1)) if trips else 1
        count, size = of(called["body"])
        return times * count, times * size
    return of(called["calls"]) if "calls" in called else (0, 0.0)


def _bytes(result: str, kind: str, devices: int) -> float:
    size = sum(
        math.prod(int(x) for x in shape.split(",") if x) * BYTES[name]
        for name, shape in SHAPE.findall(result)
    )
    if kind == "reduce-scatter":
        size *= devices
    return size * (1 - 1 / devices) * (2 if kind == "all-reduce" else 1)


def programs(mesh: Any, spec: Any, panels: int) -> dict[str, Any]:
    import lockstep.linalg as la

    def tile(n: int) -> int:
        return n // mesh.size // panels

    where = {"mesh": mesh, "in_specs": spec}
    return {
        "cholesky": lambda a: la.cholesky(a, tile=tile(len(a)), check=False, **where),
        "lu_factor": lambda a: la.lu_factor(a, tile=tile(len(a)), **where),
        "qr": lambda a: la.qr(a, tile(len(a)), **where),
    }


def rows(n: int, counts: list[int], panels: int) -> list[dict[str, Any]]:
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    found = []
    for devices in counts:
        side = math.isqrt(devices)
        for name, shape in (("line", (devices, 1)), ("grid", (side, side))):
            mesh = jax.make_mesh(
                shape, ("x", "y"), (AxisType.Auto,) * 2, devices=jax.devices()[:devices]
            )
            spec = P("x", "y")
            a = jax.ShapeDtypeStruct((n, n), "float64", sharding=NamedSharding(mesh, spec))
            for routine, run in programs(mesh, spec, panels).items():
                text = jax.jit(run).lower(a).compile().as_text() or ""
                count, size = sent(text, devices)
                row = {
                    "routine": routine,
                    "devices": devices,
                    "mesh": name,
                    "n": n,
                    "panels": panels,
                    "collectives": count,
                    "sent": round(size / (8 * n * n), 3),
                    "grid": 1 / side,
                }
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--panels", type=int, default=8)
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("NPROC", "128")
    import lockstep  # noqa: F401  # isort: skip  # before jax
    import jax

    jax.config.update("jax_num_cpu_devices", max(options.devices))
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # the collectives are the same
    found = rows(options.n, options.devices, options.panels)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
