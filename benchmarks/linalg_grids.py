"""What a device sends in factorizations on a line and on a square grid of devices, by count.

    python benchmarks/linalg_grids.py           # 4, 16 and 64 devices: a table
    python benchmarks/linalg_grids.py --json benchmarks/results/linalg_grids.json
    python benchmarks/linalg_grids.py --model   # up to 1,024 devices, by the cost model

Nothing runs: programs for that many CPU devices of one process are compiled, and their collectives
are counted, a loop's as often as it runs. Where a program branches (TSQR of a QR panel that
Cholesky cannot factor), the cheaper branch counts. `least` is n^2 / sqrt(devices), the least growth
of a layout that distributes both rows and columns (Irony, Toledo and Tiskin 2004), with the
constant of a panel that is sent along rows and along columns of a square grid.

`potrf` and `getrf` are the factorizations of `potrs` and `solve`, which take the rows as they are;
`cholesky` has the order of the rows and moves them; `ormtr` is the back-transformation of `eigh`.
Where LU on a grid moves columns, what random matrices need is counted: a loop whose turns are known
only at run time once.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.hlo import collectives, replica_groups
from lockstep.hlo import text as hlo
from lockstep.hlo.text import Instruction

Count = tuple[int, float]


def sent(text: str, devices: int) -> Count:
    """(collectives, bytes that a device sends in them) of one run of a compiled program."""
    module = hlo.parse(text)

    @functools.cache
    def of(name: str) -> Count:
        each = module.computations.get(name, {}).values()
        counts = [_of_instruction(instruction, devices, of) for instruction in each]
        return sum(c[0] for c in counts), sum(c[1] for c in counts)

    return of(module.entry)


def _of_instruction(instruction: Instruction, devices: int, of: Callable[[str], Count]) -> Count:
    if instruction.opcode in collectives.OPS:
        return 1, bytes_sent(instruction, devices)
    branches = ("branch_computations", "true_computation", "false_computation")
    if names := [name for each in branches for name in instruction.named(each)]:
        return min(map(of, names), key=lambda count: count[1])
    if instruction.opcode == "while":
        times = collectives.trips(instruction) or 1
        [(count, size)] = map(of, instruction.named("body"))
        return times * count, times * size
    called = instruction.named("calls")
    return of(called[0]) if called else (0, 0.0)


def bytes_sent(collective: Instruction, devices: int) -> float:
    """What a device sends in a collective of a program for so many devices, each time."""
    groups = replica_groups.parse(collective.attribute("replica_groups"), devices)
    size, group = sum(array.bytes for array in collective.arrays), len(groups[0])
    if collective.opcode == "reduce-scatter":
        size *= group
    return size * (1 - 1 / group) * (2 if collective.opcode == "all-reduce" else 1)


def programs(placed: Any, panels: int) -> dict[tuple[str, str], Any]:
    """By routine and by the layout of the devices."""
    import jax

    from lockstep.linalg import (
        _back_transformation,
        _general,
        _posdef,
        _qr,
        _triangular,
    )
    from lockstep.linalg._grid_model import GridShape
    from lockstep.linalg._layout import Grid
    from lockstep.linalg._posdef import Plan

    devices, side = placed.mesh.size, math.isqrt(placed.mesh.size)

    def tile(n: int) -> int:
        return n // devices // panels

    def plan(a: Any, layout: str, natural: bool) -> Plan:
        n = len(a)
        if layout == "line":
            return Plan.of(n, placed, tile(n), natural)
        return Plan.on_grid(n, placed, natural, GridShape(side, side, tile(n)))

    on = {"line": None, "grid": Grid(side, side, 1)}

    def getrf(layout: str) -> Any:
        def run(a: Any) -> Any:
            return _general.factor(a, dataclasses.replace(plan(a, "line", False), grid=on[layout]))

        return run

    def ormtr(layout: str) -> Any:
        def run(a: Any) -> Any:
            line = plan(a, "line", False)

            def body(a: Any) -> Any:
                slots = line.take_matrix(a)
                q = _back_transformation.Reflectors(slots, jax.numpy.ones(line.layout.n))
                z = slots.reshape(slots.shape[0], -1)
                return _back_transformation.apply(q, z, line.layout, line.axes, on[layout])

            return line.placed.map(body, placed.spec, line.slots)(a)

        return run

    def qr(layout: str) -> Any:
        def run(a: Any) -> Any:
            plan = _qr.QRPlan.of(a.shape, placed, tile(len(a)))
            panels = dataclasses.replace(plan.panels, grid=on[layout])
            return _qr.decompose(a, dataclasses.replace(plan, panels=panels), "reduced")

        return run

    def potrf(layout: str) -> Any:
        return lambda a: _posdef.factor(a, plan(a, layout, False), None, False)

    def cholesky(layout: str) -> Any:
        return lambda a: _triangular.factor_lower(a, plan(a, layout, True), False)

    routines = (potrf, cholesky, getrf, ormtr, qr)
    return {(of.__name__, on): of(on) for of in routines for on in ("line", "grid")}


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    import jax
    from jax.sharding import AxisType

    from lockstep.linalg._validation import Placed

    found, n, panels = [], options.n, options.panels
    for devices in options.devices:
        side = math.isqrt(devices)
        mesh = jax.make_mesh(
            (side, side), ("x", "y"), (AxisType.Auto,) * 2, devices=jax.devices()[:devices]
        )
        for split in options.splits:
            both = ("x",), ("y",)
            placed = Placed(mesh, both if split == "both" else (("x", "y"), ()))
            a = jax.ShapeDtypeStruct((n, n), "float64", sharding=placed.sharding)
            for (routine, layout), run in programs(placed, panels).items():
                if routine not in options.routines:
                    continue
                text = jax.jit(run).lower(a).compile().as_text() or ""
                count, size = sent(text, devices)
                row = {
                    "routine": routine,
                    "layout": layout,
                    "devices": devices,
                    "split": split,
                    "n": n,
                    "panels": panels,
                    "collectives": count,
                    "sent": round(size / (8 * n * n), 3),
                    "least": 1 / side,
                }
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)
                found.append(row)
    return found


def model(n: int) -> None:
    """By the cost model: numbers that a device sends, and seconds."""
    from lockstep.linalg import _cost_model, _grid_model

    on = _cost_model.CPU

    def cholesky(devices: int, tile: int, steps: int) -> tuple[float, float]:
        sent = _cost_model.cholesky_line_numbers(1, devices, steps)
        return sent, _cost_model.cholesky_seconds(n, devices, tile, on)

    def lu(devices: int, tile: int, steps: int) -> tuple[float, float]:
        by_tournament = _cost_model.lu_by_tournament(n, devices, tile)
        sent = _cost_model.lu_line_numbers(n, devices, steps, by_tournament) / n**2
        return sent, _cost_model.lu_seconds(n, devices, tile, on, by_tournament)

    routines: Any = {
        "Cholesky": (cholesky, _cost_model.cholesky_tile, _grid_model.CHOLESKY),
        "LU": (lu, _cost_model.lu_tile, _grid_model.LU),
    }
    for name, (line, best_tile, grid_model) in routines.items():
        print(f"{name}, n = {n}; sent numbers as a multiple of n^2")
        print("| devices | line, panel | sent | seconds | grid | panel | sent | seconds |")
        print("|---|---|---|---|---|---|---|---|")
        for devices in (4, 16, 64, 256, 1024):
            tile = best_tile(n, devices, n // devices, "cpu")
            sent, seconds = line(devices, tile, math.ceil(n / devices / tile))
            found = f"| {devices} | {tile * devices} | {sent:.3f} | {seconds:.3g} | "
            grid = _grid_model.best_grid(n, devices, tile, None, on, grid_model)
            assert grid is not None
            steps = math.ceil(n / devices / grid.panel)
            sent = grid_model.numbers(n, grid.rows, grid.columns, steps) / n**2
            seconds = grid_model.seconds(n, grid, on)
            found += f"{grid.rows} x {grid.columns} | {grid.panel * devices} | "
            print(found + f"{sent:.3f} | {seconds:.3g} |")
    products_model(n)


def products_model(n: int) -> None:
    """The same for routines whose work is the same on a line and on a square grid."""
    from lockstep.linalg import _cost_model, _grid_model

    print(f"n = {n}; sent numbers as a multiple of n^2")
    print("| devices | grid | QR, line | grid | back-transformation, line | grid |")
    print("|---|---|---|---|---|---|")
    for devices in (4, 16, 64, 256, 1024):
        side = math.isqrt(devices)
        steps = math.ceil(n / devices / _cost_model.qr_tile(n, devices))
        found = []
        for rows, columns in ((devices, 1), (side, side)):
            found += [
                (_grid_model.qr_numbers(n, n, steps, rows, columns) / n**2),
                (_grid_model.back_numbers(n, n, rows, columns) / n**2),
            ]
        line_qr, line_back, qr, back = (f"{x:.3f}" for x in found)
        print(f"| {devices} | {side} x {side} | {line_qr} | {qr} | {line_back} | {back} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--panels", type=int, default=8)
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument(
        "--routines", nargs="+", default=["potrf", "cholesky", "getrf", "ormtr", "qr"]
    )
    parser.add_argument("--splits", nargs="+", default=["rows", "both"])
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("NPROC", "128")
    import jax  # after lockstep

    jax.config.update("jax_num_cpu_devices", max(options.devices))
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # the collectives are the same
    if options.model:
        return model(65536)
    found = rows(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
