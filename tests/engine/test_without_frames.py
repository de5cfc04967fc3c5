"""Groups of devices where XLA's frames do not show them: known for certain, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import Result, run_lockstep

PROGRAM = Path(__file__).parent / "programs" / "without_frames.py"
WHOLE = "{0,1,2048,2049}"


def run(what: str, n: int = 2, d: int = 2, seconds: int = 60) -> Result:
    args = ["--collective-timeout", str(seconds)]
    return run_lockstep(args, PROGRAM, program_args=[what], n=n, d=d, timeout=150)


@pytest.mark.parametrize(("n", "d"), [(1, 4), (2, 1), (2, 2)])
@pytest.mark.parametrize("what", ["all_devices", "all_devices_backwards"])
def test_the_group_of_all_devices(what: str, n: int, d: int) -> None:
    result = run(what, n, d)
    assert result.by_process == {process: ["right"] for process in range(n)}
    assert result.stderr.count(f"Its {n * d} devices have told each other") == 1, result


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("one_program_with_look_alikes", "3 groups: {0,1}, " + WHOLE + ", {2048,2049}"),
        ("groups_of_some_devices", "2 groups: {0,1}, {2048,2049}"),
        ("another_group_later", f"it is not {WHOLE}, which is known already"),
        ("another_order_later", f"it is not {WHOLE}, which is known already"),
    ],
)
def test_other_groups_are_an_error_and_no_number(what: str, why: str) -> None:
    result = run(what)
    assert result.by_process.keys() == {0, 1}
    for [text] in result.by_process.values():
        assert text.startswith("cannot tell which devices form the group that starts with"), result
        assert why in text, result
        assert "--collectives gloo" in text


def test_a_program_that_may_still_run_counts() -> None:
    # Its group looks like that of all devices on the process that has dropped it.
    result = run("a_program_that_was_dropped")
    assert f"2 groups: {{0,1}}, {WHOLE}" in result.by_process[0][0], result
    assert f"2 groups: {WHOLE}, {{2048,2049}}" in result.by_process[1][0], result


def test_some_processes_for_themselves_are_an_error() -> None:
    result = run("devices_of_one_process")
    assert list(result.by_process) == [0]
    assert "only group, {0,1}, is of some devices only" in result.by_process[0][0], result


def test_processes_that_do_not_come_are_named_at_the_deadline() -> None:
    result = run("not_on_all_processes", seconds=3)
    assert list(result.by_process) == [0]
    [text] = result.by_process[0]
    assert f"within 3 s not all devices have asked for {WHOLE}; missing: process 1 (pid " in text


def test_programs_are_kept_until_a_frame_has_told() -> None:
    program = """
        import time, jax, numpy as np
        jax.distributed.initialize()
        from lockstep.hlo import membership
        x = np.ones((jax.local_device_count(), 3))
        jax.pmap(lambda a: a + 1)(x)
        print(len(membership._programs._kept) > 0, membership._programs.gap)
        jax.block_until_ready(jax.pmap(lambda a: jax.lax.psum(a, "i"), "i")(x))
        deadline = time.monotonic() + 60
        while membership._programs._kept and time.monotonic() < deadline:
            time.sleep(0.05)
        print(len(membership._programs._kept), membership._programs.gap)
    """
    result = run_lockstep([], program, n=2, d=2)
    told = ["True None", "0 XLA's frames did show an earlier group"]
    assert result.by_process == {0: told, 1: told}, result
