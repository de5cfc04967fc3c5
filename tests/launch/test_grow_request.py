"""Which ends of processes are failures of a job that was asked to end, to start on more hosts."""

from __future__ import annotations

import signal

import pytest

from lockstep._run_files import OUT_OF_MEMORY, STOPPED, ErrorRecord, Exit
from lockstep.launch.grow_request import GrowRequest
from lockstep.processes.first_failure import EndedProcess

AT = 100.0


def killed(process: int, number: int, reason: str | None = None, at: float = 105.0) -> EndedProcess:
    return EndedProcess(process, Exit(signal=number, reason=reason), at)


def raised(process: int, summary: str, status: int = 1, at: float = 105.0) -> EndedProcess:
    record = ErrorRecord(at, status, summary, "")
    return EndedProcess(process, Exit(exit_code=status), at + 0.1, record)


def ended(process: int, status: int = 0) -> EndedProcess:
    return EndedProcess(process, Exit(exit_code=status), 105.0)


BROKEN = "jax.errors.JaxRuntimeError: INTERNAL: MPI error: lockstep: process 0 has ended"
FOLLOW = [
    ended(0),
    killed(0, signal.SIGTERM),
    killed(0, signal.SIGINT, STOPPED),
    killed(0, signal.SIGKILL, STOPPED),
    raised(0, "sys.exit(143)", 143),
]
FAIL = [
    killed(0, signal.SIGKILL, OUT_OF_MEMORY),
    killed(0, signal.SIGSEGV),
    raised(0, "OSError: [Errno 28] No space left on device"),
    EndedProcess(0, Exit(reason="its host was lost: no answer"), 105.0),
    ended(0, 3),
    killed(0, signal.SIGTERM, at=99.0),
    EndedProcess(0, Exit(signal=9, reason=STOPPED), 107.0, ErrorRecord(105.0, 1, "OSError", "")),
]


def request() -> GrowRequest:
    made = GrowRequest()
    made.at = AT
    return made


@pytest.mark.parametrize("ending", FOLLOW)
def test_a_process_that_ends_as_it_is_asked_has_not_failed(ending: EndedProcess) -> None:
    assert not request().has_failed([ending, ended(1)], all_ended=True)
    assert request().unasked([ending]) == ([ending] if not ending.failed else [])


@pytest.mark.parametrize("ending", FAIL)
def test_a_process_that_fails_on_its_own_has_failed(ending: EndedProcess) -> None:
    for all_ended in (False, True):
        assert request().has_failed([ending, killed(1, signal.SIGTERM)], all_ended)
    assert request().unasked([ending, killed(1, signal.SIGTERM)]) == [ending]


def test_a_collective_that_breaks_by_the_request_is_no_failure() -> None:
    for broken in (raised(1, BROKEN), killed(1, signal.SIGABRT)):
        assert not request().has_failed([killed(0, signal.SIGTERM), broken], all_ended=True)


def test_a_collective_that_breaks_in_all_processes_is_a_failure() -> None:
    endings = [raised(0, BROKEN), raised(1, BROKEN)]
    assert request().has_failed(endings, all_ended=True)
    assert not request().has_failed(endings, all_ended=False)


def test_without_a_request_every_end_counts() -> None:
    endings = [killed(0, signal.SIGTERM), killed(1, signal.SIGKILL, STOPPED)]
    assert GrowRequest().unasked(endings) == endings
