"""Runs random programs in this process of a job, and compares every step with the model.

    python worker.py --first SEED --count N [--in-flight K]

Prints what went wrong, with the seed and the steps, and exits with status 1; prints one line
otherwise. Several programs are in flight at a time: nothing waits before the last is dispatched.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from engine.random_programs import auto, model
from engine.random_programs.auto import AutoProgram
from engine.random_programs.program import COMPLEX, FLOATS, Program, Step, generate


def _apply(step: Step, x: jax.Array, flag: jax.Array, program: Program) -> jax.Array:
    axes, params = step.axes, step.params
    groups = params.get("groups")
    match step.op:
        case "mix":
            return _mix(x, program)
        case "stack":
            return jnp.stack([x] * params["count"], axis=params["axis"])
        case "loop":
            return lax.fori_loop(
                0,
                params["count"],
                lambda _, c: _mix(_apply(params["body"], c, flag, program), program),
                x,
            )
        case "branch":
            branches = [
                functools.partial(_apply, params[name], flag=flag, program=program)
                for name in ("if_0", "if_1")
            ]
            return lax.switch(flag, branches, x)
        case "psum":
            if beside := params.get("beside"):
                other = jnp.full((3,), lax.axis_index(tuple(program.mesh)), beside)
                x, other = lax.psum((x, other), axes, axis_index_groups=groups)
                # Elements that differ would show in x.
                return x + (other[0] != other[2]).astype(x.dtype)
            return lax.psum(x, axes, axis_index_groups=groups)
        case "pmax":
            return lax.pmax(x, axes, axis_index_groups=groups)
        case "pmin":
            return lax.pmin(x, axes, axis_index_groups=groups)
        case "all_gather":
            return lax.all_gather(
                x, axes, axis=params["axis"], tiled=params["tiled"], axis_index_groups=groups
            )
        case "psum_scatter":
            return lax.psum_scatter(
                x,
                axes,
                scatter_dimension=params["axis"],
                tiled=params["tiled"],
                axis_index_groups=groups,
            )
        case "all_to_all":
            return lax.all_to_all(
                x,
                axes,
                params["split"],
                params["concat"],
                tiled=params["tiled"],
                axis_index_groups=groups,
            )
        case "ppermute":
            return lax.ppermute(x, axes, params["pairs"])
    raise ValueError(step.op)


def _mix(x: jax.Array, program: Program) -> jax.Array:
    index = lax.axis_index(tuple(program.mesh))
    if program.dtype == "bool":
        return x ^ (index % 2 == 1)
    if program.dtype in FLOATS:
        return jnp.mod(x, model.MODULUS) - (index % model.MODULUS).astype(x.dtype)
    if program.dtype in COMPLEX:
        real, imaginary = jnp.mod(x.real, model.MODULUS), jnp.mod(x.imag, model.MODULUS)
        return lax.complex(real - (index % model.MODULUS).astype(real.dtype), imaginary)
    return x * x.dtype.type(3) + index.astype(x.dtype)


def _by_hand(program: Program, mesh: Mesh) -> Any:
    front = (1,) * len(mesh.axis_names)

    def body(x: jax.Array, flag: jax.Array) -> list[jax.Array]:
        x, states = x.reshape(program.shape), []
        for step in program.steps:
            x = _apply(step, x, flag, program)
            states.append(x.reshape(front + x.shape))
        return states

    spec = P(*mesh.axis_names)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(spec, P()), out_specs=spec, check_vma=False)
    return jax.jit(mapped)


def _by_jit(program: AutoProgram, mesh: Mesh) -> Any:
    def constrain(x: jax.Array, spec: auto.Spec) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def body(x: jax.Array, flag: jax.Array) -> list[jax.Array]:
        states = []
        for step in program.steps:
            x = auto.apply(step, x, jnp, constrain)
            states.append(x)
        return states

    return jax.jit(body, out_shardings=NamedSharding(mesh, P()))


class Run:
    """A program of either kind on this process: compiled, dispatched, compared."""

    def __init__(self, program: Program | AutoProgram, devices: list[Any]) -> None:
        self.program = program
        chosen = np.array([devices[i] for i in program.devices])
        self.mesh = Mesh(chosen.reshape(tuple(program.mesh.values())), tuple(program.mesh))
        self.takes_part = any(d.process_index == jax.process_index() for d in chosen)
        self.outputs: list[jax.Array] = []

    def compile(self) -> None:
        if isinstance(self.program, Program):
            function, host = _by_hand(self.program, self.mesh), model.initial(self.program)
            self.expected, spec = model.run(self.program), P(*self.mesh.axis_names)
        else:
            function, host = _by_jit(self.program, self.mesh), auto.initial(self.program)
            self.expected, spec = auto.run(self.program), P()
        self.arguments = (
            self._array(host.astype(jnp.dtype(self.program.dtype)), spec),
            self._array(np.asarray(self.program.flag, np.int32), P()),
        )
        self.compiled = function.lower(*self.arguments).compile()

    def _array(self, host: np.ndarray, spec: Any) -> jax.Array:
        sharding = NamedSharding(self.mesh, spec)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    @property
    def is_alone(self) -> bool:
        """Whether it runs on one device of this process."""
        here = [d for d in self.mesh.devices.flat if d.process_index == jax.process_index()]
        return len(here) == 1

    def dispatch(self) -> None:
        self.outputs = self.compiled(*self.arguments)

    def compare(self) -> str:
        """Empty when every shard of every step is right, else what is wrong first."""
        for number, (want, got) in enumerate(zip(self.expected, self.outputs, strict=True)):
            for shard in got.addressable_shards:
                part = want[shard.index]
                have = np.asarray(shard.data).astype(part.dtype)
                if not np.array_equal(have, part):
                    step = f"step {number}, {self.program.steps[number]}, on {shard.device}"
                    return f"{step}: {_difference(have, part)}"
        return ""


def _difference(have: np.ndarray, want: np.ndarray) -> str:
    if have.shape != want.shape:
        return f"shape {have.shape}, expected {want.shape}"
    wrong = np.argwhere(have != want)
    first = tuple(map(int, wrong[0]))
    count = f"{len(wrong)} of {want.size} elements wrong"
    return f"{count}, first at {list(first)}: {have[first]}, expected {want[first]}"


def check(seeds: range, in_flight: int, devices: list[Any]) -> tuple[int, int]:
    """Runs the programs twice each; returns how many executions there were and how many wrong."""
    done = failed = 0
    for start in range(0, len(seeds), in_flight):
        drawn = [
            (auto.generate if seed % 4 == 3 else generate)(seed, len(devices))
            for seed in seeds[start : start + in_flight]
        ]
        batch = [run for run in (Run(program, devices) for program in drawn) if run.takes_part]
        for run in batch:
            run.compile()
        for _ in range(2):
            for before, run in zip([None, *batch], batch, strict=False):
                # JAX lets a program on one device of a process overtake one on several.
                if before is not None and before.is_alone != run.is_alone:
                    jax.block_until_ready(before.outputs)
                run.dispatch()
            for run in batch:
                done += 1
                if difference := run.compare():
                    failed += 1
                    print(f"WRONG on process {jax.process_index()}: {difference}\n{run.program}")
    return done, failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=4)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if "LOCKSTEP_NUM_PROCESSES" in os.environ:
        jax.distributed.initialize()
    devices = sorted(jax.devices(), key=lambda d: d.id)
    seeds = range(arguments.first, arguments.first + arguments.count)
    done, failed = check(seeds, arguments.in_flight, devices)
    print(f"process {jax.process_index()}: {done} executions, {failed} wrong", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
