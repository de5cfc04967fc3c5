"""How lockstep.linalg grows with devices and size, counted in compiled programs.

    python benchmarks/linalg_growth.py                       # flops and bytes, 1 to 8 devices
    python benchmarks/linalg_growth.py --compile 1024 8192   # seconds to compile, by n and tile
    python benchmarks/linalg_growth.py --hosts               # the cost model for up to 64 hosts

Weak scaling: n grows with the square root of the number of devices, so that the matrix of one
device stays as large. Flops and bytes are those of one device, in plain JAX: nobody counts what is
inside the kernels that CPUs have. Flops of products are XLA's own count (`cost_analysis`), which
leaves out LAPACK's calls; those, and the collectives, are read off the compiled text: what a device
receives.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Iterator
from typing import Any

from linalg_grids import bytes_sent
from lockstep.hlo import collectives
from lockstep.hlo import text as hlo
from lockstep.hlo.text import Instruction, Module


def received(module: Module, devices: int) -> tuple[int, int]:
    """(collectives, bytes that a device receives in them: as many as it sends)."""
    found = [each for each in _instructions(module) if each.opcode in collectives.OPS]
    return len(found), int(sum(bytes_sent(each, devices) for each in found))


def lapack_flops(module: Module) -> float:
    """Flops of the calls of potrf and trsm."""
    found = 0.0
    for each in _instructions(module):
        target = each.attribute("custom_call_target")
        if target.startswith('"lapack_dpotrf'):
            found += each.arrays[0].shape[-1] ** 3 / 3
        elif target.startswith('"lapack_dtrsm'):
            rows, columns = each.arrays[0].shape[-2:]
            found += rows * rows * columns
    return found


def _instructions(module: Module) -> Iterator[Instruction]:
    for computation in module.computations.values():
        yield from computation.values()


def programs(
    n: int, devices: int, tile: int | None, rhs: int, plain: bool = False
) -> tuple[Any, dict[str, Any]]:
    """The plan, and the lowered programs of potrs and of potri after the factor."""
    import jax
    from jax.sharding import AxisType, NamedSharding

    from lockstep.linalg import _posdef
    from lockstep.linalg._validation import Placed

    mesh = jax.make_mesh((devices,), ("x",), (AxisType.Auto,), devices=jax.devices()[:devices])
    placed, b_placed = Placed(mesh, (("x",), ())), Placed(mesh, ((), ()))
    plan = _posdef.Plan.of(n, placed, tile, False)
    plan = dataclasses.replace(plan, kernels=plan.kernels and not plain)
    rows = plan.layout.rows
    slots = jax.ShapeDtypeStruct(
        (devices * rows, devices, rows), "float64", sharding=NamedSharding(mesh, plan.slots)
    )
    b = jax.ShapeDtypeStruct((n, rhs), "float64", sharding=b_placed.sharding)
    both = ("forward", "backward")
    return plan, {
        "factor": lambda: _posdef.factor_slots.lower(slots, plan, False),
        "sweeps": lambda: _posdef.sweep.lower(slots, b, plan, b_placed, both),
        "inverse": lambda: _posdef.inverse_of.lower(slots, plan),
    }


def weak_scaling(smallest: int) -> None:
    heads = ("Gflop", "of the least", "MB received", "collectives", "peak/share")
    print(f"{'program':8}{'devices':>8}{'n':>6}{'tile':>6}" + "".join(f"{h:>13}" for h in heads))
    # Not the sweeps: they are loops, whose bodies the compiled program holds once.
    for name, thirds in (("factor", 1), ("inverse", 2)):
        for devices in (1, 2, 4, 8):
            n = int(smallest * math.sqrt(devices)) // (16 * devices) * 16 * devices
            plan, lower = programs(n, devices, None, 1, plain=True)
            compiled = lower[name]().compile()
            module, memory = hlo.parse(compiled.as_text()), compiled.memory_analysis()
            flops = compiled.cost_analysis()["flops"] + lapack_flops(module)
            least = thirds * n**3 / 3 / devices
            count, size = received(module, devices)
            held = memory.argument_size_in_bytes + memory.output_size_in_bytes
            held += memory.temp_size_in_bytes - memory.alias_size_in_bytes
            print(
                f"{name:8}{devices:8}{n:6}{plan.layout.tile:6}{flops / 1e9:13.3f}"
                f"{flops / least:13.2f}{size / 1e6:13.2f}{count:13}"
                f"{held / (n * n / devices * 8):13.2f}",
                flush=True,
            )


def compile_times(sizes: list[int]) -> None:
    print(f"{'program':8}{'n':>6}{'tile':>6}{'panels':>8}{'trace s':>9}{'compile s':>11}")
    for n in sizes:
        for panels in (8, 16, 32, 64):
            plan, lower = programs(n, 2, n // 2 // panels, 1)
            for name, trace in lower.items():
                start = time.perf_counter()
                traced = trace()
                middle = time.perf_counter()
                traced.compile()
                end = time.perf_counter()
                print(
                    f"{name:8}{n:6}{plan.layout.tile:6}{panels:8}{middle - start:9.1f}"
                    f"{end - middle:11.1f}",
                    flush=True,
                )


def hosts() -> None:
    """Seconds of the factor by the cost model, on hosts that nobody here has."""
    from lockstep.linalg import _cost_model

    rates = {"gemm": 1.0e12, "small": 60e9, "link": 10e9, "padding": 10e9}
    host = dataclasses.replace(_cost_model.CPU, gemm_half=128, latency=20e-6, **rates)
    print("One device a host: 1 Tflop/s in products, 60 Gflop/s in one tile, 20 us, 10 GB/s.")
    print(f"{'hosts':>6}{'n':>8}{'tile':>6}{'seconds':>9}{'efficiency':>12}{'strong n=65536':>16}")
    for count in (1, 2, 4, 8, 16, 32, 64):
        n = int(32768 * math.sqrt(count)) // 4096 * 4096
        tile, seconds = best(n, count, host)
        fixed = best(65536, count, host)[1]
        least = n**3 / 3 / count / host.gemm
        print(f"{count:6}{n:8}{tile:6}{seconds:9.1f}{least / seconds:12.2f}{fixed:16.1f}")


def best(n: int, devices: int, machine: Any) -> tuple[int, float]:
    from lockstep.linalg import _cost_model

    tiles = [t for t in _cost_model.TILES if n / devices / t <= _cost_model.MAX_STEPS]
    seconds = {t: _cost_model.cholesky_seconds(n, devices, t, machine) for t in tiles}
    tile = min(seconds, key=seconds.__getitem__)
    return tile, seconds[tile]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smallest", type=int, default=1024, help="n on one device")
    parser.add_argument("--compile", nargs="+", type=int, metavar="N")
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("NPROC", "32")
    import jax  # after lockstep

    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_enable_x64", True)
    if options.hosts:
        hosts()
    elif options.compile:
        compile_times(options.compile)
    else:
        weak_scaling(options.smallest)


if __name__ == "__main__":
    main()
