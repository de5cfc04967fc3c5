"""Which cliques a program's text names, and that an ask gets the right one or an error."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.hlo.replica_groups import Clique, UnknownError, claim, named, text_of, the_only_one

REDUCE = "  %sum = f32[4]{0} all-reduce(%x), channel_id=1, "
REST = ', use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(f)/psum"}'


def program(*lines: str, devices: int) -> str:
    sizes = f", num_partitions={devices}" if devices > 1 else ""
    return "\n".join([f"HloModule jit_f, is_scheduled=true{sizes}", "ENTRY %main {", *lines, "}"])


def groups(said: str, devices: list[int]) -> set[Clique]:
    line = f"{REDUCE}replica_groups={said}{REST}"
    return named(program(line, devices=len(devices)), devices)


@pytest.mark.parametrize(
    ("said", "cliques"),
    [
        ("{{0,1,2,3}}", {(0, 1, 8, 9)}),
        ("{{0,2},{3,1}}", {(0, 8), (9, 1)}),
        ("{{0},{1},{2},{3}}", {(0,), (1,), (8,), (9,)}),
        ("[1,4]<=[4]", {(0, 1, 8, 9)}),
        ("[2,2]<=[4]", {(0, 1), (8, 9)}),
        ("[2,2]<=[2,2]T(1,0)", {(0, 8), (1, 9)}),
        ("[1,4]<=[2,2]T(1,0)", {(0, 8, 1, 9)}),
        ("mesh['x'=2,'y'=2] {'x','y'}", {(0, 1, 8, 9)}),
        ("mesh['x'=2,'y'=2] {'y','x'}", {(0, 8, 1, 9)}),
        ("mesh['x'=2,'y'=2] {'x'}", {(0, 8), (1, 9)}),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=2] {'axis_2'}", {(0, 1), (8, 9)}),
    ],
)
def test_the_spellings_of_groups(said: str, cliques: set[Clique]) -> None:
    assert groups(said, [0, 1, 8, 9]) == cliques


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_arranged_groups_are_numpys(dims: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(dims))))
    inner = data.draw(st.integers(1, len(dims)))
    count, size = math.prod(dims), math.prod(dims[axis] for axis in order[-inner:])
    expected = np.arange(count).reshape(dims).transpose(order).reshape(-1, size)
    wanted = {tuple(int(i) for i in row) for row in expected}
    shape = ",".join(map(str, dims))
    turned = ",".join(map(str, order))
    assert groups(f"[{count // size},{size}]<=[{shape}]T({turned})", [*range(count)]) == wanted
    axes = ",".join(f"'a{i}'={size}" for i, size in enumerate(dims))
    names = ",".join(f"'a{i}'" for i in order[-inner:])
    assert {frozenset(g) for g in groups(f"mesh[{axes}] {{{names}}}", [*range(count)])} == {
        frozenset(g) for g in wanted
    }


def permute(pairs: str) -> str:
    line = f"  %p = f32[4]{{0}} collective-permute(%x), channel_id=1, source_target_pairs={pairs}"
    return program(line, devices=4)


def test_a_permute_that_connects_all_devices_is_among_all() -> None:
    for pairs in ("{{0,1},{1,2},{2,3},{3,0}}", "{{0,1},{1,2},{2,3}}", "{{3,0},{1,0},{0,2}}"):
        assert named(permute(pairs), [4, 5, 6, 7]) == {(4, 5, 6, 7)}


@pytest.mark.parametrize(
    "text",
    [
        permute("{{0,1},{1,0}}"),
        permute("{{0,1},{2,3}}"),
        *(
            program(f"{REDUCE}{attributes}{REST}", devices=4)
            for attributes in (
                "replica_groups={}",
                "replica_groups=[2,2,1]<=[4]",
                "replica_groups=mesh['x'=4], device_ids=([4]<=[2,2]T(1,0)) {'x'}",
                "replica_groups=mesh['x'=4] {'x':(1)2}",
                "to_be_found_in=3",
                'metadata={op_name="jit(f)/replica_groups={{0,1,2,3}}, "}',
            )
        ),
        program("  %g = f32[8] all-gather-start(%x), dimensions={0}", devices=4),
        program("  %s = (f32[4], token[]) send(%x, %t), channel_id=3", devices=4),
        program("  %b = f32[4] collective-broadcast(%x), frobnicate=1", devices=4),
    ],
)
def test_what_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(UnknownError, match="not understood"):
        named(text, [0, 1, 2, 3])


def test_programs_without_collectives_name_nothing() -> None:
    done = "  %d = f32[4]{0} all-reduce-done(%all-reduce-start)"
    for text in (program("  %y = f32[4] add(%x, %x)", devices=4), program(done, devices=4)):
        assert named(text, None) == set()


def test_a_program_whose_devices_are_not_known_is_an_error() -> None:
    line = f"{REDUCE}replica_groups={{{{0,1}}}}{REST}"
    for devices in (None, [0], [0, 1, 2]):
        with pytest.raises(UnknownError, match="not known for which devices"):
            named(program(line, devices=2), devices)
    with pytest.raises(UnknownError, match="more devices"):
        groups("{{0,1,2}}", [0, 1])


JOB = {0: 0, 1: 0, 8: 1, 9: 1}


@pytest.mark.parametrize(
    ("cliques", "color", "key", "words"),
    [
        (set(), 0, 0, "0 groups: none"),
        ({(0, 1), (0, 1, 8, 9)}, 0, 0, r"2 groups: \{0,1\}, \{0,1,8,9\}"),
        ({(0, 1, 8, 9), (0, 8, 1, 9)}, 0, 0, "2 groups"),
        ({(0, 1)}, 0, 1, r"\{0,1\}, is of some devices only"),
        ({(0, 1, 8, 8)}, 0, 1, "some devices only"),
        ({(0, 1, 8, 9, 0)}, 0, 1, "some devices only"),
        ({(0, 1, 8, 9)}, 1, 0, "another one"),
        ({(0, 1, 8, 9)}, 0, 2, "another one"),
        ({(0, 1, 8, 9)}, 0, 4, "another one"),
        ({(0, 1, 8, 9)}, 0, -1, "another one"),
    ],
)
def test_an_ask_that_is_an_error(cliques: set[Clique], color: int, key: int, words: str) -> None:
    with pytest.raises(UnknownError, match=words):
        the_only_one(cliques, JOB, 0, color, key)


def test_many_groups_are_told_in_short() -> None:
    assert text_of({tuple(range(99))}).endswith("10,11,...}")
    assert text_of({(i,) for i in range(9)}) == "{0}, {1}, {2}, {3}, and 5 more"


@dataclasses.dataclass
class Job:
    """Devices, the cliques in use, and what happens first on each device."""

    process_of: dict[int, int]
    cliques: list[Clique]
    asks: dict[int, Clique]
    named: dict[int, set[Clique]]
    """By process: all that its devices ask for, and perhaps more."""


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True))
    process_of = {device: draw(st.integers(0, 2)) for device in ids}
    whole = st.permutations(ids).map(tuple)
    some = st.lists(st.sampled_from(ids), min_size=1, unique=True).map(tuple)
    cliques = draw(st.lists(st.one_of(whole, some), min_size=1, max_size=3, unique=True))
    of = {device: [clique for clique in cliques if device in clique] for device in ids}
    asks = {device: draw(st.sampled_from(own)) for device, own in of.items() if own}
    named = {process: draw(st.sets(st.sampled_from(cliques))) for process in range(3)}
    for device, clique in asks.items():
        named[process_of[device]].add(clique)
    return Job(process_of, cliques, asks, named)


@given(jobs())
def test_who_gets_an_answer_gets_the_right_one(job: Job) -> None:
    published: dict[int, str] = {}
    answers: dict[int, Clique] = {}
    for device, clique in job.asks.items():
        process, key = job.process_of[device], clique.index(device)
        with contextlib.suppress(UnknownError):
            found = the_only_one(job.named[process], job.process_of, process, clique[0], key)
            assert found == clique
            answers[device] = found
            published[key] = claim(found, key, job.process_of)
    for found in answers.values():
        # What the exchange waits for.
        if published == {key: claim(found, key, job.process_of) for key in range(len(found))}:
            assert answers == dict.fromkeys(job.process_of, found)
    if len(job.cliques) == 1 and len(job.cliques[0]) == len(job.process_of):
        assert answers == dict.fromkeys(job.process_of, job.cliques[0])


def test_a_claim_says_who_asks_for_what() -> None:
    assert re.fullmatch(r"\[1, 0, \[0, 8, 1, 9\]\]", claim((0, 8, 1, 9), 1, JOB))
