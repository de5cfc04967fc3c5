"""float16 and float8 in collectives: a compiler pass that gives XLA's MPI plug types it takes.

XLA's MPI communicator refuses float16 in all-reduce, reduce-scatter and all-gather. XLA itself
widens bfloat16 to float32 and every float8 to float16 (or float32) before that point, so float16
is all that is left. Where a collective comes from does not matter here: `jax.extend.xla` runs this
pass on the program as it is after partitioning, so what `shard_map` wrote and what `jit` inserted
look the same.

- A reduction is done in float32: one rounding at the end instead of one for each addend, and no
  overflow of partial sums.
- An all-gather moves bits: they are renamed to unsigned integers and back, which costs nothing.
- All-to-all and collective-permute travel as bytes already.

Needs jax 0.10.2. With an earlier jax XLA's own error for these types stays, and `explain_uncaught`
adds what to do; docs/reference/low-precision.md has more, and what the pass costs.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lockstep
from lockstep import _jax_compat
from lockstep.hlo.proto import (
    Computation,
    ElementType,
    HloProgram,
    Instruction,
    Message,
    Module,
    ProgramShape,
    Shape,
)
from lockstep.hlo.size_limits import COLLECTIVES, check_counts

PASS_NAME = "lockstep-widen-float16-collectives"

_REDUCTIONS = (b"all-reduce", b"reduce-scatter")
_MOVES = (b"all-gather",)
_OPCODES = _REDUCTIONS + _MOVES
_PREFIX = b"lockstep-"


def register_when_needed(platform: str) -> bool:
    """Registers the pass once CPU devices of several processes compute; returns whether it is over.

    Called when JAX has backends: since jax 0.11 the registration makes them, and
    ``jax.distributed.initialize()`` must come before that. GPU programs have no use for the pass.
    The pass does nothing unless XLA's CPU collectives are those of the MPI plug. It also refuses
    collectives that are too large for it.
    """
    if _jax_compat.distributed_client() is None:
        return False
    if platform == "cpu" and not (_jax_compat.has_passes() and _register()):
        explain_uncaught()
    return True


def _register() -> bool:
    def put_in() -> None:
        # The key changes first. With one key for both, a cache would give the pass's programs to
        # gloo, which then hangs, and gloo's to the engine, with collectives that XLA refuses.
        _jax_compat.add_to_cache_key(
            lambda: f"{PASS_NAME} {lockstep.__version__}" if _is_active() else ""
        )
        _jax_compat.register_pass(PASS_NAME, _transform)

    return _jax_compat.install(
        "float16 pass",
        "float16 and float8 collectives between processes; an error says so.",
        put_in,
    )


def _is_active() -> bool:
    return _jax_compat.setting("jax_cpu_collectives_implementation") == "mpi"


WHAT_TO_DO = (
    "lockstep: XLA refuses float16 and float8 collectives between processes here; from jax 0.10.2 "
    "on Lockstep makes them work. Update jax, or widen by hand "
    "(lax.psum(x.astype(jnp.float32), ...).astype(x.dtype)), use bfloat16, or run with "
    "--collectives gloo."
)


def explain_uncaught() -> None:
    """Lets the traceback of XLA's refusal end with what to do about it.

    XLA raises it while it executes, where nothing of ours is on the way.
    """
    show = sys.excepthook

    def explained(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if _jax_compat.is_refused_type(error):
            error.add_note(WHAT_TO_DO)
        show(kind, error, trace)

    sys.excepthook = explained


def _transform(module: bytes) -> bytes | None:
    if not _is_active():
        return None
    program = HloProgram(module, COLLECTIVES)
    check_counts(program)
    return widen(program)


def widen(program: HloProgram) -> bytes | None:
    """The program with its float16 collectives rewritten; None when there are none.

    It has to have been read for those of `COLLECTIVES` that XLA refuses, and is used up.
    """
    return _Rewriter(program).run()


class _Rewriter:
    """One module being rewritten."""

    def __init__(self, program: HloProgram) -> None:
        self.module = program.module
        self.bodies = program.bodies
        self.wide_reducers: dict[int, Message] = {}
        self.changed = False

    @functools.cached_property
    def originals(self) -> dict[int, Message]:
        computations = map(Message.parse, self.module.parts(Module.COMPUTATIONS))
        return {computation.integer(Computation.ID): computation for computation in computations}

    def run(self) -> bytes | None:
        self.module.replace_parts(Module.COMPUTATIONS, lambda raw: [self._computation(raw)])
        if not self.changed:
            return None
        # A computation has to stand before those that call it.
        added = [computation.encode() for computation in self.wide_reducers.values()]
        self.module.prepend(Module.COMPUTATIONS, added)
        return self.module.encode()

    def _computation(self, raw: bytes) -> bytes:
        body = self.bodies.get(raw)
        if body is None or not any(map(_is_refused, body.instructions)):
            return raw
        self.changed = True
        # XLA numbers an instruction (computation id << 32 | index).
        ids = itertools.count(max(body.shapes) + 1)
        instructions = iter(body.instructions)

        def change(raw: bytes) -> list[bytes]:
            instruction = next(instructions)
            if not _is_refused(instruction):
                return [raw]
            return [new.encode() for new in self._collective(instruction, body.shapes, ids)]

        body.computation.replace_parts(Computation.INSTRUCTIONS, change)
        return body.computation.encode()

    def _collective(
        self, collective: Message, shapes: Mapping[int, bytes], ids: Iterator[int]
    ) -> list[Message]:
        """The instructions that stand for `collective`; the last one takes over its id."""
        moves = collective.part(Instruction.OPCODE) in _MOVES
        to, opcode = (ElementType.U16, b"bitcast") if moves else (ElementType.F32, b"convert")
        cast = functools.partial(_make, opcode, metadata=collective.part(Instruction.METADATA))
        shape, its_id = collective.part(Instruction.SHAPE), collective.integer(Instruction.ID)

        before, operands = [], []
        for operand in collective.integers(Instruction.OPERAND_IDS):
            if _has_half(shapes[operand]):
                before.append(cast(_retype(shapes[operand], to), [operand], next(ids)))
                operand = before[-1].integer(Instruction.ID)
            operands.append(operand)
        collective.set(Instruction.SHAPE, _retype(shape, to))
        collective.set(Instruction.ID, next(ids))
        collective.set_integers(Instruction.OPERAND_IDS, operands)
        if not moves:
            reducers = collective.integers(Instruction.CALLED_COMPUTATION_IDS)
            wide = [self._wide_reducer(reducer) for reducer in reducers]
            collective.set_integers(Instruction.CALLED_COMPUTATION_IDS, wide)
        return [*before, collective, *_restore(collective, shape, its_id, ids, cast)]

    def _wide_reducer(self, reducer: int) -> int:
        """The id of a float32 copy of the computation (the original may have other callers)."""
        if reducer not in self.wide_reducers:
            new_id = max(self.originals) + 1 + len(self.wide_reducers)
            self.wide_reducers[reducer] = _wide_computation(self.originals[reducer], new_id)
        return self.wide_reducers[reducer].integer(Computation.ID)


def _restore(
    collective: Message,
    shape: bytes,
    its_id: int,
    ids: Iterator[int],
    cast: Callable[[bytes, list[int], int], Message],
) -> list[Message]:
    """Brings the result of a changed collective back to `shape`, under the id `its_id`."""
    source = collective.integer(Instruction.ID)
    elements = Message.parse(shape).parts(Shape.TUPLE_SHAPES)
    if not elements:
        return [cast(shape, [source], its_id)]
    changed = Message.parse(collective.part(Instruction.SHAPE)).parts(Shape.TUPLE_SHAPES)
    out, results = [], []
    for index, (element, changed_element) in enumerate(zip(elements, changed, strict=True)):
        out.append(_make(b"get-tuple-element", changed_element, [source], next(ids)))
        out[-1].set(Instruction.TUPLE_INDEX, index)
        if element != changed_element:
            out.append(cast(element, [out[-1].integer(Instruction.ID)], next(ids)))
        results.append(out[-1].integer(Instruction.ID))
    return [*out, _make(b"tuple", shape, results, its_id)]


def _make(
    opcode: bytes, shape: bytes, operands: list[int], id: int, metadata: bytes = b""
) -> Message:
    instruction = Message()
    # Unique: XLA makes no names that begin like this, and the id is unique in the module.
    instruction.set(Instruction.NAME, b"%s%s.%d" % (_PREFIX, opcode, id))
    instruction.set(Instruction.OPCODE, opcode)
    instruction.set(Instruction.SHAPE, shape)
    instruction.set(Instruction.METADATA, metadata)
    instruction.set(Instruction.ID, id)
    instruction.set_integers(Instruction.OPERAND_IDS, operands)
    return instruction


def _wide_computation(original: Message, new_id: int) -> Message:
    """A copy that works on float32 wherever the original worked on float16."""
    wide = functools.partial(_retype, to=ElementType.F32)

    def moved(id: int) -> int:
        return new_id << 32 | id & 0xFFFFFFFF

    def instruction(raw: bytes) -> list[bytes]:
        copy = Message.parse(raw)
        copy.set(Instruction.NAME, _PREFIX + copy.part(Instruction.NAME))
        copy.set(Instruction.SHAPE, wide(copy.part(Instruction.SHAPE)))
        copy.set(Instruction.ID, moved(copy.integer(Instruction.ID)))
        operands = map(moved, copy.integers(Instruction.OPERAND_IDS))
        copy.set_integers(Instruction.OPERAND_IDS, operands)
        return [copy.encode()]

    program_shape = Message.parse(original.part(Computation.PROGRAM_SHAPE))
    for number in (ProgramShape.PARAMETERS, ProgramShape.RESULT):
        program_shape.replace_parts(number, lambda shape: [wide(shape)])
    computation = Message(original.fields)
    computation.set(Computation.NAME, _PREFIX + original.part(Computation.NAME))
    computation.set(Computation.ID, new_id)
    computation.set(Computation.ROOT_ID, moved(original.integer(Computation.ROOT_ID)))
    computation.set(Computation.PROGRAM_SHAPE, program_shape.encode())
    computation.replace_parts(Computation.INSTRUCTIONS, instruction)
    return computation


def _is_refused(instruction: Message) -> bool:
    refused = instruction.part(Instruction.OPCODE) in _OPCODES
    return refused and _has_half(instruction.part(Instruction.SHAPE))


def _has_half(shape: bytes) -> bool:
    message = Message.parse(shape)
    if message.integer(Shape.ELEMENT_TYPE) == ElementType.F16:
        return True
    return any(map(_has_half, message.parts(Shape.TUPLE_SHAPES)))


def _retype(shape: bytes, to: ElementType) -> bytes:
    message = Message.parse(shape)
    if message.integer(Shape.ELEMENT_TYPE) == ElementType.F16:
        message.set(Shape.ELEMENT_TYPE, to)
    message.replace_parts(Shape.TUPLE_SHAPES, lambda element: [_retype(element, to)])
    return message.encode()
