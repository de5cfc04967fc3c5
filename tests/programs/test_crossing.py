"""Which collectives take part of several processes, by the text of a compiled program."""

from __future__ import annotations

import pytest

from lockstep.programs.crossing import crosses_processes

REDUCE = "  %all-reduce.1 = f32[4]{0} all-reduce(%x), channel_id=1, %s, to_apply=%add"
START = "  %a = (f32[4], f32[8]) all-gather-start(%x), channel_id=1, %s, dimensions={0}"
PERMUTE = "  ROOT %p = f32[4]{0} collective-permute(%x), channel_id=2, %s"
PROCESSES = (0, 0, 1, 1)


def text(*lines: tuple[str, str]) -> str:
    return "\n".join(["HloModule jit_f", "ENTRY %main {", *(a.replace("%s", b) for a, b in lines)])


LOCAL = (REDUCE, "replica_groups={{0,1},{2,3}}, use_global_device_ids=true")


@pytest.mark.parametrize(
    ("lines", "crosses"),
    [
        ([LOCAL], False),
        ([(START, "replica_groups=[2,2]<=[4]")], False),
        ([(PERMUTE, "source_target_pairs={{0,1},{1,0},{2,3}}")], False),
        ([LOCAL, (START, "replica_groups=[2,2]<=[2,2]T(1,0)")], True),
        ([LOCAL, (REDUCE, "replica_groups={{0,2},{1,3}}")], True),
        ([LOCAL, (PERMUTE, "source_target_pairs={{1,2}}")], True),
        ([(REDUCE, "replica_groups={}")], True),
        ([(REDUCE, "replica_groups={{0}}, use_global_device_ids=false")], True),
        ([(REDUCE, "replica_groups=mesh['x'=2,'y'=2] {'y'}")], False),
        ([(REDUCE, "replica_groups=mesh['x'=2,'y'=2] {'x'}")], True),
        ([(REDUCE, "replica_groups=mesh['x'=2,'y'=2] {'x','y'}")], True),
        ([(REDUCE, "replica_groups=mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}")], False),
        ([(REDUCE, "replica_groups=mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}")], True),
        ([(REDUCE, "replica_groups=of_a_later_jax")], True),
        ([], True),
    ],
)
def test_a_program_crosses_processes(lines: list[tuple[str, str]], crosses: bool) -> None:
    """What is not known may cross them."""
    assert crosses_processes(text(*lines), PROCESSES) is crosses


def test_processes_whose_devices_alternate() -> None:
    assert crosses_processes(text(LOCAL), (0, 1, 0, 1))
