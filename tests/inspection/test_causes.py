"""Why a collective is there, from what is written beside it."""

from __future__ import annotations

import pytest

from lockstep.callsites.hlo_text import SourceLine
from lockstep.hlo.collectives import Collective
from lockstep.hlo.text import Array
from lockstep.inspection import causes


def collective(
    op: str,
    op_name: str,
    user_op: str = "",
    generated: bool = False,
    carried: bool = False,
    inputs: tuple[Array, ...] = (),
) -> Collective:
    return Collective(
        name="c",
        op=op,
        channel=1,
        reduction="",
        inputs=inputs,
        results=(),
        groups=((0, 1),),
        pairs=(),
        op_name=op_name,
        at=SourceLine(),
        user_op=user_op,
        user_at=SourceLine(),
        generated=generated,
        loops=(),
        conditional=False,
        invariant=False,
        only_sliced=False,
        carried=carried,
    )


@pytest.mark.parametrize(
    ("op", "op_name", "user_op", "text"),
    [
        ("all-reduce", "jit(f)/shard_map/psum", "", "lax.psum"),
        ("all-reduce", "jit(f)/shard_map/psum2", "", "lax.psum"),
        ("all-reduce", "jit(f)/shard_map/psum_invariant", "", "lax.psum"),
        ("reduce-scatter", "jit(f)/shard_map/reduce_scatter", "", "lax.psum_scatter"),
        ("collective-permute", "jit(f)/while/body/ppermute", "", "lax.ppermute"),
        ("all-reduce", "jit(f)/while/body/dot_general", "", "contraction in dot_general"),
        (
            "all-reduce",
            "jit(f)/transpose(jvp(loss)/reduce_sum)",
            "",
            "reduce_sum of a sharded dimension",
        ),
        ("all-gather", "jit(f)/dot_general", "", "resharding for dot_general"),
        ("all-to-all", "jit(f)/sharding_constraint", "", "resharding by sharding_constraint"),
        ("all-gather", "params['w']", "jit(f)/dot_general", "argument params['w'] resharded"),
        ("all-gather", "", "jit(f)/mul", "resharding for mul"),
        ("all-reduce", "jit(f)/jvp()/gather", "", "gather in a sharded dimension"),
        ("all-reduce", "jit(f)/scatter-add", "", "scatter-add over a sharded dimension"),
        ("all-gather", "", "", "unknown"),
        ("all-gather", "jit(f)/shard_map/psum", "", "resharding for psum"),
    ],
)
def test_each_cause_has_its_words(op: str, op_name: str, user_op: str, text: str) -> None:
    assert causes.of(collective(op, op_name, user_op)).text.startswith(text)


def test_one_that_was_combined_has_the_causes_of_all() -> None:
    """As jaxlib 0.10.2 writes the paths of an all-reduce of several arrays."""
    name = (
        "jit(step)/(transpose(jvp())/while/body/dot_general:jvp(jit(log_softmax))/reduce_sum:"
        "transpose(jvp())/while/body/dot_general)"
    )
    found = causes.of(collective("all-reduce", name))
    assert found.text == "contraction in dot_general; reduce_sum of a sharded dimension"
    assert found.kind == causes.Kind.CONTRACTION
    # Brackets of a scope of the program are no list.
    for single in ("jit(f)/(a:b)/dot_general", "jit(f)/dot_general", "params['(a:b)']", ""):
        assert causes.parts(single) == [single]


def test_what_a_loop_carries_from_one_iteration_to_the_next() -> None:
    found = causes.of(collective("all-to-all", "", carried=True))
    assert found == causes.Cause(causes.Kind.RESHARDING, "resharding of what the loop carries")


def test_what_the_partitioner_put_in_is_not_the_programs() -> None:
    found = causes.of(collective("all-gather", "jit(f)/x/all_gather", generated=True))
    assert found.kind == causes.Kind.RESHARDING


def test_parts_of_a_reduction_are_gathered_and_an_array_is_resharded() -> None:
    part, shard = Array("f32", (1, 4)), Array("f32", (8, 4))
    found = causes.of(collective("all-gather", "jit(argmax)/reduce", inputs=(part, part)))
    assert found == causes.Cause(causes.Kind.REDUCTION, "reduce of a sharded dimension")
    found = causes.of(collective("all-gather", "jit(argmax)/reduce", inputs=(part, shard)))
    assert found.kind == causes.Kind.RESHARDING
