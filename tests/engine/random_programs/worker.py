"""Runs random programs in this process of a job, and compares every step with the model.

    python worker.py --first SEED --count N [--in-flight K] [--times T] [--repeat R] [--threads T]

Prints what went wrong, with the seed and the steps, and exits with status 1; prints one line
otherwise. Several programs are in flight at a time: nothing waits before the last is dispatched.
Every other program donates its input.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import operator
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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

_MOST_ELEMENTS = 1 << 20
"""Of all inputs of an execution, on a device."""
_IN_HLO = re.compile(r" = .*? (?:all-|reduce-scatter|collective-)[a-z-]*\(")
"""A collective in a compiled program."""


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

    def body(xs: jax.Array, flag: jax.Array) -> list[jax.Array]:
        def run(_: Any, x: jax.Array) -> tuple[Any, list[jax.Array]]:
            states = []
            for step in program.steps:
                x = _apply(step, x, flag, program)
                states.append(x)
            return None, states

        xs = xs.reshape(xs.shape[len(front) :])
        if len(xs) == 1:
            states = [state[None] for state in run(None, xs[0])[1]]
        else:
            states = lax.scan(run, None, xs)[1]
        return [state.reshape(front + state.shape) for state in states]

    spec = P(*mesh.axis_names)
    return jax.shard_map(body, mesh=mesh, in_specs=(spec, P()), out_specs=spec, check_vma=False)


def _by_jit(program: AutoProgram, mesh: Mesh) -> Any:
    def constrain(x: jax.Array, spec: auto.Spec) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def body(x: jax.Array, flag: jax.Array) -> list[jax.Array]:
        states = []
        for step in program.steps:
            x = auto.apply(step, x, jnp, constrain)
            states.append(x)
        return [lax.with_sharding_constraint(state, NamedSharding(mesh, P())) for state in states]

    return body


class Run:
    """A program of either kind on this process: compiled, dispatched, compared."""

    def __init__(self, program: Program, devices: list[Any], repeat: int) -> None:
        self.program = program
        chosen = np.array([devices[i] for i in program.devices])
        self.mesh = Mesh(chosen.reshape(tuple(program.mesh.values())), tuple(program.mesh))
        processes = {d.process_index for d in chosen}
        self.takes_part = jax.process_index() in processes
        self.is_counted_here = min(processes) == jax.process_index()
        self.repeat = 1
        if not isinstance(program, AutoProgram):
            # Each step of each input is kept, here and by the model.
            self.repeat = min(repeat, max(1, _MOST_ELEMENTS // max(1, math.prod(program.shape))))
        self.donates = program.seed % 2 == 1
        self.outputs: list[jax.Array] = []

    def compile(self) -> None:
        if not isinstance(self.program, AutoProgram):
            function, spec = _by_hand(self.program, self.mesh), P(*self.mesh.axis_names)
            at = len(self.program.mesh)
            hosts = [model.initial(self.program, number) for number in range(self.repeat)]
            runs = [model.run(self.program, host) for host in hosts]
            self.host = np.stack(hosts, at)
            self.expected = [np.stack(states, at) for states in zip(*runs, strict=True)]
        else:
            function, spec = _by_jit(self.program, self.mesh), P()
            self.host, self.expected = auto.initial(self.program), auto.run(self.program)
        self.sharding = NamedSharding(self.mesh, spec)
        jitted = jax.jit(function, donate_argnums=(0,) if self.donates else ())
        self.compiled = jitted.lower(*self._arguments()).compile()
        by_hand = self.repeat * sum(map(_collectives, self.program.steps))
        self.collectives = by_hand or len(_IN_HLO.findall(self.compiled.as_text() or ""))

    def _arguments(self) -> tuple[jax.Array, jax.Array]:
        """Made anew for each execution: the program may have donated them."""
        host = self.host.astype(jnp.dtype(self.program.dtype))
        flag = np.asarray(self.program.flag, np.int32)
        everywhere = NamedSharding(self.mesh, P())
        return _array(host, self.sharding), _array(flag, everywhere)

    @property
    def is_alone(self) -> bool:
        """Whether it runs on one device of this process."""
        here = [d for d in self.mesh.devices.flat if d.process_index == jax.process_index()]
        return len(here) == 1

    def dispatch(self) -> None:
        self.outputs = self.compiled(*self._arguments())

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


def _collectives(step: Step) -> int:
    """How many collectives an execution of the step has."""
    if step.op == "loop":
        return step.params["count"]
    return step.op == "branch" or step.op in model.OPERATIONS


def _array(host: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _difference(have: np.ndarray, want: np.ndarray) -> str:
    if have.shape != want.shape:
        return f"shape {have.shape}, expected {want.shape}"
    wrong = np.argwhere(have != want)
    first = tuple(map(int, wrong[0]))
    count = f"{len(wrong)} of {want.size} elements wrong"
    return f"{count}, first at {list(first)}: {have[first]}, expected {want[first]}"


@dataclasses.dataclass
class Tally:
    """What was run and compared. A collective counts on the first process that takes part in it."""

    executions: int = 0
    collectives: int = 0
    wrong: int = 0

    def __add__(self, other: Tally) -> Tally:
        sums = map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other))
        return Tally(*sums)


def check(seeds: Sequence[int], devices: list[Any], options: argparse.Namespace) -> Tally:
    """Runs the programs ``--times`` times each, some at once, and compares every result."""
    tally = Tally()
    for start in range(0, len(seeds), options.in_flight):
        drawn = [
            _draw(seed, len(devices), options.keep) for seed in seeds[start:][: options.in_flight]
        ]
        runs = [Run(program, devices, options.repeat) for program in drawn]
        batch = [run for run in runs if run.takes_part]
        for run in batch:
            run.compile()
        for _ in range(options.times):
            for before, run in zip([None, *batch], batch, strict=False):
                # JAX lets a program on one device of a process overtake one on several.
                if before is not None and before.is_alone != run.is_alone:
                    jax.block_until_ready(before.outputs)
                run.dispatch()
            for run in batch:
                difference = run.compare()
                tally += Tally(1, run.collectives * run.is_counted_here, bool(difference))
                if difference:
                    print(f"WRONG on process {jax.process_index()}: {difference}\n{run.program}")
    return tally


def _draw(seed: int, devices: int, keep: Sequence[int] | None) -> Program:
    program = (auto.generate if seed % 4 == 3 else generate)(seed, devices)
    if keep is None:
        return program
    return dataclasses.replace(program, steps=tuple(program.steps[i] for i in keep))


def in_threads(seeds: Sequence[int], devices: list[Any], options: argparse.Namespace) -> Tally:
    """Each thread has a device of each process, and programs of its own in an order of its own.

    JAX runs the programs over several devices of a process one after the other, whichever thread
    has called them: threads in another order on each process would wait for each other.
    """
    count = min(jax.local_device_count() if options.threads > 1 else 1, len(devices))
    if count == 1:
        return check(seeds, devices, options)
    with ThreadPoolExecutor(count) as pool:
        tallies = pool.map(
            lambda k: check(seeds[k::count], devices[k::count], options), range(count)
        )
        return sum(tallies, Tally())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20, help="how many seeds")
    parser.add_argument("--in-flight", type=int, default=4, help="programs dispatched at once")
    parser.add_argument("--times", type=int, default=2, help="executions of each program")
    parser.add_argument("--repeat", type=int, default=1, help="inputs that an execution scans")
    parser.add_argument("--threads", type=int, default=1, help="2: one for each local device")
    parser.add_argument("--keep", type=_numbers, help="0,2: only these steps of each program")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if "LOCKSTEP_NUM_PROCESSES" in os.environ:
        jax.distributed.initialize()
    devices = sorted(jax.devices(), key=lambda d: d.id)
    tally = in_threads(range(options.first, options.first + options.count), devices, options)
    print(
        f"process {jax.process_index()}: {tally.executions} executions, "
        f"{tally.collectives} collectives, {tally.wrong} wrong",
        flush=True,
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
