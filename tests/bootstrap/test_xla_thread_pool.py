"""XLA's pool has room for the collectives of several devices, unless the user decides."""

from __future__ import annotations

import os

import pytest

from lockstep.bootstrap import xla_thread_pool
from processes import python

FORCED = "--xla_force_host_platform_device_count"


@pytest.mark.parametrize(
    ("asked", "flags", "planned"),
    [
        (-1, "", 1),
        (1, "", 1),
        (4, "", 4),
        (-1, f"{FORCED}=2", 2),
        (-1, f"{FORCED}=2 --xla_x=3 {FORCED}=1", 1),
        (1, f"{FORCED}=2", 1),
    ],
)
def test_the_devices_that_jaxlib_is_going_to_make(asked: int, flags: str, planned: int) -> None:
    assert xla_thread_pool.planned_devices(asked, {"XLA_FLAGS": flags}) == planned


@pytest.mark.parametrize(
    ("devices", "cores", "before", "within"),
    [
        (4, 2, None, "8"),
        (4, 7, None, "8"),
        (4, 8, None, None),
        (1, 1, None, None),
        (4, 2, "5", "5"),
    ],
)
def test_the_pool_has_two_threads_a_device(
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    cores: int,
    before: str | None,
    within: str | None,
) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    if before is not None:
        monkeypatch.setenv("NPROC", before)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(xla_thread_pool, "planned_devices", lambda asked, environ: devices)
    with xla_thread_pool.enough():
        assert os.environ.get("NPROC") == within
    assert os.environ.get("NPROC") == before, "programs that are started later have it"


def threads_of_jax(before: str) -> int:
    """How many threads a process has that has made four devices on one core."""
    ended = python(
        f"""
        import os
        {before}
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        import lockstep, jax
        assert len(jax.devices()) == 4
        print(len(os.listdir("/proc/self/task")))
        """,
        env={"JAX_NUM_CPU_DEVICES": "4"},
    )
    assert ended.status == 0, ended
    return int(ended.stdout)


@pytest.mark.full
def test_jaxlib_has_more_threads_than_it_would_make_by_itself() -> None:
    """By itself it has one for each device, and so it has where the user decides on one."""
    alone = threads_of_jax("os.environ['NPROC'] = '1'")
    assert threads_of_jax("os.environ.pop('NPROC', None)") >= alone + 4
