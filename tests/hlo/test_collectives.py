"""Collectives in the text of a compiled program, and the loops around them."""

from __future__ import annotations

import pytest

from lockstep.hlo import collectives

PROGRAM = """\
HloModule jit_f, is_scheduled=true, num_partitions=4

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%slicing (p0: f32[8,4], p1: s32[]) -> f32[1,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %cut = f32[1,4]{1,0} dynamic-slice(%p0, %p1), dynamic_slice_sizes={1,4}, metadata={op_name="jit(f)/dynamic_slice"}
}

%inner (s: (s32[], f32[2,4], f32[8])) -> (s32[], f32[2,4], f32[8]) {
  %s = (s32[], f32[2,4]{1,0}, f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %same = f32[2,4]{1,0} get-tuple-element(%s), index=1
  %acc = f32[8]{0} get-tuple-element(%s), index=2
  %gathered = f32[8,4]{1,0} all-gather(%same), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(f)/while/body/(a \\"b\\")/dot_general" source_file="/home/u/f.py" source_line=7}
  %piece = f32[1,4]{1,0} fusion(%gathered, %i), kind=kLoop, calls=%slicing
  %reduced = (f32[8]{0}, f32[3]{0:T(8)}) all-reduce(%acc, /*index=1*/%small), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
  %small = f32[3]{0} constant({1, 2, 3})
  %first = f32[8]{0} get-tuple-element(%reduced), index=0
  ROOT %next = (s32[], f32[2,4]{1,0}, f32[8]{0}) tuple(%i, %same, %first)
}

%outer (t: (s32[], f32[2,4], f32[8])) -> (s32[], f32[2,4], f32[8]) {
  %t = (s32[], f32[2,4]{1,0}, f32[8]{0}) parameter(0)
  ROOT %again = (s32[], f32[2,4]{1,0}, f32[8]{0}) while(%t), condition=%never, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}

%never (u: (s32[], f32[2,4], f32[8])) -> pred[] {
  %u = (s32[], f32[2,4]{1,0}, f32[8]{0}) parameter(0)
  ROOT %no = pred[] constant(false)
}

%branch (v: f32[8]) -> f32[8] {
  %v = f32[8]{0} parameter(0)
  ROOT %moved = f32[8]{0} collective-permute(%v), channel_id=3, source_target_pairs={{0,1},{1,2}}
}

ENTRY %main (a: f32[2,4], b: f32[8], c: pred[]) -> f32[8] {
  %a = f32[2,4]{1,0} parameter(0), metadata={op_name="a"}
  %b = f32[8]{0} parameter(1), metadata={op_name="b"}
  %c = pred[] parameter(2)
  %zero = s32[] constant(0)
  %state = (s32[], f32[2,4]{1,0}, f32[8]{0}) tuple(%zero, %a, %b)
  %loop = (s32[], f32[2,4]{1,0}, f32[8]{0}) while(%state), condition=%never, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
  %out = f32[8]{0} get-tuple-element(%loop), index=2
  %chosen = f32[8]{0} conditional(%c, %out, %out), true_computation=%branch, false_computation=%branch
  %begun = (f32[8]{0}, f32[32]{0}) all-gather-start(%chosen), channel_id=4, replica_groups={}, dimensions={0}
  %ended = f32[32]{0} all-gather-done(%begun)
  ROOT %last = f32[8]{0} slice(%ended), slice={[0:8]}
}
"""  # noqa: E501
Found = dict[str, collectives.Collective]


@pytest.fixture(scope="module")
def found() -> Found:
    return {each.name: each for each in collectives.find(PROGRAM)}


def test_nested_loops_multiply(found: Found) -> None:
    gathered = found["gathered"]
    assert [loop.trips for loop in gathered.loops] == [3, 5]
    assert gathered.executions == 15
    assert found["begun"].executions == 1


def test_bytes_are_those_of_one_device(found: Found) -> None:
    assert (found["gathered"].bytes, found["gathered"].result_bytes) == (32, 128)
    assert (found["begun"].bytes, found["begun"].result_bytes) == (32, 128)


def test_a_combined_all_reduce_has_all_its_operands(found: Found) -> None:
    reduced = found["reduced"]
    assert [str(array) for array in reduced.inputs] == ["f32[8]", "f32[3]"]
    assert reduced.reduction == "sum"
    assert reduced.groups == ((0, 1), (2, 3))


def test_the_path_and_line_survive_quotes_and_brackets(found: Found) -> None:
    assert found["gathered"].at[:2] == ("/home/u/f.py", 7)
    assert found["gathered"].op_name.endswith("/dot_general")


def test_what_a_loop_does_not_change_is_told_from_what_it_does(found: Found) -> None:
    assert found["gathered"].invariant
    assert not found["reduced"].invariant
    assert not found["begun"].invariant


def test_only_slices_of_a_gathered_array_are_seen_through_a_fusion(found: Found) -> None:
    assert found["gathered"].only_sliced
    assert not found["reduced"].only_sliced


def test_a_branch_may_not_run(found: Found) -> None:
    assert found["moved"].conditional
    assert found["moved"].pairs == ((0, 1), (1, 2))
    assert not found["gathered"].conditional


def test_an_unknown_trip_count_is_unknown() -> None:
    text = PROGRAM.replace('backend_config={"known_trip_count":{"n":"3"}}', "")
    found = {each.name: each for each in collectives.find(text)}
    assert found["gathered"].executions is None
    assert [loop.trips for loop in found["gathered"].loops] == [None, 5]


def test_what_is_no_program_is_an_error() -> None:
    with pytest.raises(ValueError, match="it has no ENTRY"):
        collectives.find("HloModule nothing")
