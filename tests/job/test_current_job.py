"""What a process remembers of its job, and that a second job inherits nothing."""

from __future__ import annotations

import pytest

from lockstep.job import current_job
from processes import python
from support import run_lockstep


class Closed(current_job.Part):
    def __init__(self) -> None:
        self.count = 0

    def close(self) -> None:
        ORDER.append(type(self).__name__)


class ClosedFirst(Closed):
    pass


class Broken(Closed):
    def close(self) -> None:
        super().close()
        raise OSError("cannot be closed")


ORDER: list[str] = []


def test_a_part_is_made_once_and_closed_with_its_job_the_latest_first() -> None:
    ORDER.clear()
    current_job.end()
    ORDER.clear()
    current_job.part(Closed).count += 1
    current_job.part(ClosedFirst)
    assert current_job.part(Closed).count == 1
    current_job.end()
    assert ORDER == ["ClosedFirst", "Closed"]
    assert current_job.part(Closed).count == 0


def test_all_parts_are_closed_where_one_raises() -> None:
    current_job.end()
    ORDER.clear()
    current_job.part(Closed)
    current_job.part(Broken)
    with pytest.raises(OSError, match="cannot be closed"):
        current_job.end()
    assert ORDER == ["Broken", "Closed"]


@pytest.mark.full
def test_the_end_of_a_second_job_has_the_label_of_that_job() -> None:
    ended = python(
        """
        import lockstep
        from lockstep.engine import bindings
        from lockstep.job import current_job
        from lockstep.watchdog import shutdown_hook
        bindings.leave = lambda state: print(state.name)
        bindings.abort = lambda text: print(text)
        shutdown_hook.mark_the_end("process 0 of the first", lambda: print("first ends"))
        current_job.end()
        shutdown_hook.mark_the_end("process 1 of the second", lambda: print("second ends"))
        raise ValueError("no data")
        """
    )
    assert ended.stdout.splitlines() == [
        "FAILED",
        "lockstep: process 1 of the second failed: ValueError: no data",
        "second ends",
    ], ended


@pytest.mark.full
def test_what_a_process_has_counted_in_a_first_job_does_not_count_in_the_second() -> None:
    program = """
        import jax, jax.extend, lockstep
        lockstep.initialize(check=False)
        if jax.process_index() == 0:
            try:
                lockstep.barrier("data", timeout=1)
            except lockstep.MissingProcessError:
                print("missing")
        jax.distributed.shutdown()
        jax.clear_caches()
        jax.extend.backend.clear_backends()
        lockstep.initialize(check=False)
        lockstep.barrier("data", timeout=60)
        print("met")
    """
    result = run_lockstep([], program, forked=True)
    assert result.by_process == {0: ["missing", "met"], 1: ["met"]}, result
