"""Which program the number of an execution belongs to."""

from __future__ import annotations

import dataclasses

import pytest

from lockstep.callsites import hlo_metadata
from lockstep.callsites.farmhash import fingerprint64
from lockstep.callsites.highwayhash import hash_of_devices, highway_hash
from lockstep.callsites.hlo_metadata import Collective, CompiledProgram, Matcher, Programs, parse

ALL_REDUCE = Collective("all-reduce", 1, "f32[1]", "psum", "a.py", 1)
FIRST = CompiledProgram(b"1234567890", "jit_first", (ALL_REDUCE,), "first")
SECOND = CompiledProgram(b"9876543210", "jit_second", (ALL_REDUCE,), "second")
CALLS = {("all-reduce", 1)}


def number(program: CompiledProgram, *devices: int) -> int:
    added = hash_of_devices(devices) if devices else 0
    return (fingerprint64(program.fingerprint) + added) % (1 << 32)


def test_highway_hash_of_the_vectors_that_its_authors_give() -> None:
    key = [int.from_bytes(bytes(range(at, at + 8)), "little") for at in range(0, 32, 8)]
    assert highway_hash(b"", key) == 0x907A56DE22C26E53
    assert highway_hash(bytes(1), key) == 0x7EAB43AAC7CDDD78
    assert highway_hash(bytes(range(33)), key) == 0x2C90F73CA03181FC


def test_programs_over_known_devices_are_distinguished_at_once() -> None:
    matcher = Matcher(lambda: {(0, 2048), (0, 1, 2048, 2049)})
    one, other = number(FIRST, 0, 1, 2048, 2049), number(SECOND, 0, 2048)
    found = matcher.match({one: CALLS, other: CALLS}, [FIRST, SECOND])
    assert found == {one: [FIRST], other: [SECOND]}
    assert matcher.is_known(one + 5)
    assert matcher.is_known(other)


def test_a_program_of_one_process_alone_has_its_fingerprints_number() -> None:
    found = Matcher().match({number(SECOND): CALLS}, [FIRST, SECOND])
    assert found == {number(SECOND): [SECOND]}


def test_two_programs_over_the_same_unknown_devices_give_the_hash_away() -> None:
    numbers = [number(FIRST, 5, 6), number(SECOND, 5, 6)]
    found = Matcher().match(dict.fromkeys(numbers, CALLS), [FIRST, SECOND])
    assert found == {numbers[0]: [FIRST], numbers[1]: [SECOND]}


def test_all_that_fit_are_named_over_unknown_devices() -> None:
    matcher = Matcher()
    one, other = number(FIRST, 5, 6), number(SECOND, 7, 8)
    found = matcher.match({one: CALLS, other: CALLS}, [FIRST, SECOND])
    assert found == {one: [FIRST, SECOND], other: [FIRST, SECOND]}
    assert not matcher.is_known(one)
    elsewhere = CompiledProgram(b"555", "jit_elsewhere", (), "elsewhere")
    assert matcher.match({one: CALLS}, [FIRST, elsewhere]) == {one: [FIRST]}


@dataclasses.dataclass
class Executable:
    """What jaxlib lists, as far as it is looked at."""

    fingerprint: bytes
    text: str
    reads: int = 0

    def hlo_modules(self) -> list[Executable]:
        return [self]

    def to_string(self) -> str:
        self.reads += 1
        return self.text


def test_a_program_that_was_dropped_at_once_is_known_when_it_was_held() -> None:
    text = "HloModule jit_f, x\n  %r = f32[4]{0} all-reduce(%x), channel_id=1, to_apply=%add\n"
    dropped, local = Executable(b"1", text), Executable(b"2", "HloModule jit_g, x\n  add()\n")
    live = [dropped, local]
    programs = Programs(lambda: live)
    for held in (dropped, local, dropped):
        programs.hold(held)
    del live[:]
    assert [p.module for p in programs.all()] == ["jit_f"]
    live.append(dropped)
    programs.hold(dropped)
    assert [p.module for p in programs.all()] == ["jit_f"]
    assert (dropped.reads, local.reads) == (1, 1)


RESHARDED = """HloModule jit_step, num_partitions=4

FileNames
1 "/home/u/train.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=8 end_column=8}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main.0_spmd (param: f32[4,8]) -> (f32[8,8], f32[8,8]) {
  %param = f32[4,8]{1,0} parameter(0), metadata={op_name="x"}
  %add_fusion = f32[4,8]{1,0} fusion(%param), calls=%add, metadata={op_name="a" stack_frame_id=1}
  %wrapped_copy = f32[4,8]{0,1} fusion(%add_fusion), kind=kLoop, calls=%wrapped_copy_computation
  %all-gather = f32[8,8]{0,1} all-gather(%wrapped_copy), channel_id=1, dimensions={0}
  %all-gather.1 = f32[8,8]{1,0} all-gather(%param), channel_id=2, dimensions={0}
  %two_fusion = f32[4,8]{1,0} fusion(%add_fusion, %param), kind=kLoop, calls=%two
  %all-gather.2 = f32[8,8]{1,0} all-gather(%two_fusion), channel_id=3, dimensions={0}
  ROOT %tuple = (f32[8,8]{0,1}, f32[8,8]{1,0}) tuple(%all-gather, %all-gather.1)
}
"""


def test_a_resharding_has_the_line_of_what_is_moved() -> None:
    computed, argument, of_two = parse(b"1", RESHARDED).collectives
    assert (computed.op_name, computed.file, computed.line) == ("a", "/home/u/train.py", 41)
    for unknown in (argument, of_two):
        assert (unknown.op_name, unknown.file, unknown.line) == ("", "", 0)


THROUGH = r"""HloModule jit_statistics, num_partitions=2

FileNames
1 "/home/u/train.py"
2 "/home/u/.venv/lib/python3.11/site-packages/mc/mc_stats.py"

FunctionNames
1 "<module>"
2 "main"
3 "statistics"
4 "mean"

FileLocations
1 {file_name_id=1 function_name_id=1 line=90 end_line=90 column=2 end_column=2}
2 {file_name_id=1 function_name_id=2 line=24 end_line=24 column=11 end_column=11}
3 {file_name_id=2 function_name_id=3 line=4 end_line=4 column=11 end_column=11}
4 {file_name_id=2 function_name_id=4 line=96 end_line=96 column=11 end_column=11}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=4 parent_frame_id=4}

%region_0.0 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0), metadata={op_name="not this"}
}

ENTRY %main.0_spmd (param: f32[4,3], param.1: (s32[], f32[])) -> f32[] {
  %param.1 = f32[3]{0} parameter(1), sharding={replicated}, metadata={op_name="b[\'w\']"}
  %param.2 = pred[] parameter(2)
  %param = f32[4,3]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}, metadata={op_name="x"}
  %sum = f32[] all-reduce(%r), channel_id=1, to_apply=%region_0.0, metadata={stack_frame_id=4}
  %own = f32[] all-reduce(%r), channel_id=2, to_apply=%region_0.0, metadata={stack_frame_id=2}
  ROOT %t = (f32[], f32[]) tuple(%sum, %own)
}
"""


def test_a_librarys_line_stands_behind_the_users_above_it() -> None:
    library, own = parse(b"1", THROUGH).collectives
    assert (library.file, library.line, library.function) == ("/home/u/train.py", 24, "main")
    assert (library.through_file.rpartition("/")[2], library.through_line) == ("mc_stats.py", 96)
    assert (own.file, own.line, own.through_file) == ("/home/u/train.py", 24, "")


def test_a_stack_of_library_frames_only_has_the_innermost_line() -> None:
    there = THROUGH.replace("/home/u/train.py", "/x/site-packages/tool/cli.py")
    library, _ = parse(b"1", there).collectives
    assert (library.file.rpartition("/")[2], library.line) == ("mc_stats.py", 96)
    assert library.through_file == ""


def test_parents_that_are_printed_as_they_are_lead_the_same_way() -> None:
    plain = THROUGH
    for frame in range(1, 5):
        plain = plain.replace(
            f"{frame} {{file_location_id={frame} parent_frame_id={frame}}}",
            f"{frame} {{file_location_id={frame} parent_frame_id={frame - 1}}}",
        )
    assert parse(b"1", plain).collectives == parse(b"1", THROUGH).collectives


def test_the_line_of_an_old_jaxlib_stands_in_the_metadata() -> None:
    old = """HloModule jit_f
  %r = f32[] all-reduce(%x), channel_id=1, metadata={source_file="/a/lib.py" source_line=7}
"""
    [one] = parse(b"1", old).collectives
    assert (one.file, one.line, one.through_file) == ("/a/lib.py", 7, "")


def test_the_arguments_of_a_program_by_their_names() -> None:
    assert parse(b"1", THROUGH).arguments == ("x: f32[4,3]", "b['w']: f32[3]", "argument 3: pred[]")
    lines = (
        f'  %p = f32[{n}]{{0}} parameter({n}), metadata={{op_name="p{n}"}}\n' for n in range(999)
    )
    named = '  %c = f32[] constant(1), metadata={op_name="f/a parameter(b)"}\n'
    text = f"HloModule m\n\nENTRY %main () -> f32[] {{\n{named}{''.join(lines)}}}\n"
    many = parse(b"1", text).arguments
    assert (len(many), many[0], many[-1]) == (256, "p0: f32[0]", "p998: f32[998]")


def test_a_collective_of_more_than_five_arrays_is_read() -> None:
    """XLA numbers every fifth element of a tuple's shape."""
    shapes = ", ".join(("/*index=5*/" if at == 5 else "") + "f32[3,6]{1,0}" for at in range(8))
    call = f"({shapes}) all-to-all(%a, %b), channel_id=1, replica_groups={{{{0,1}}}}"
    text = f"HloModule m, is_scheduled=true\n\nENTRY %main () -> f32[] {{\n  %all = {call}\n}}\n"
    [found] = parse(b"1", text).collectives
    assert (found.op, found.channel) == ("all-to-all", 1)
    assert found.shape == f"({', '.join(['f32[3,6]'] * 8)})"


CALL = (
    'HloModule jit_f\n\n  %a = f32[4] custom-call(%x), custom_call_target="TARGET", '
    'api_version=API_VERSION_TYPED_FFI, frontend_attributes={num_batch_dims="0"}, '
    'metadata={op_name="jit(f)/a"}, backend_config={CONFIG}\n'
)


def digest_of_call(target: str, config: str) -> str:
    return hlo_metadata.digest(CALL.replace("TARGET", target).replace("CONFIG", config))[0]


@pytest.mark.parametrize(
    ("target", "configs", "is_same"),
    [
        ("lapack_ssyevd_ffi", ("mode = 86 : ui8, uplo = 76 : ui8", "mode = 86 : ui8"), False),
        ("lapack_ssyevd_ffi", ("uplo = 76 : ui8", "uplo = 85 : ui8"), False),
        ("scale", ("by = 1.2345678901 : f64", "by = 1.2345678902 : f64"), False),
        ("scale", ("p = 140213371122688 : ui64", "p = 140213371122912 : ui64"), True),
        ("xla_ffi_python_cpu_callback", ("index = 0 : ui64", "index = 3 : ui64"), True),
        ("__cublas$gemm", ('{"selected_algorithm":"1"}', '{"selected_algorithm":"2"}'), True),
    ],
)
def test_what_a_call_is_configured_with(
    target: str, configs: tuple[str, str], is_same: bool
) -> None:
    """All but addresses, numbers of Python functions, and what the compiler has chosen."""
    one, two = (digest_of_call(target, config) for config in configs)
    assert (one == two) is is_same
