"""What a job that failed prints: a traceback of several processes once, and its line."""

from __future__ import annotations

import pytest

from lockstep._run_files import ErrorRecord, Exit
from lockstep.job.topology import Peer
from lockstep.launch.failure_report import headline
from lockstep.processes.first_failure import EndedProcess
from lockstep.watchdog.host_reachability import unreachable_words
from support import assert_unsaid, run_lockstep

RAISES = """
def load():
    raise ValueError("no data")

import os, pathlib, time
meet = pathlib.Path(__file__).parent / "meet"
meet.mkdir(exist_ok=True)
(meet / os.environ["LOCKSTEP_PROCESS_ID"]).touch()
while len(list(meet.iterdir())) < 3:  # the launcher stops a process that has not started
    time.sleep(0.01)
load()
"""


@pytest.mark.parametrize("options", [[], ["--full-tracebacks"]], ids=["", "full"])
def test_an_error_of_all_processes_is_shown_once(options: list[str]) -> None:
    result = run_lockstep(options, RAISES, n=3, expect_status=1)
    assert result.stderr.count("Traceback (most recent call last)") == 1, result
    assert result.stderr.count('raise ValueError("no data")') == 1, result
    [whole] = [i for i, lines in result.stderr_by_process.items() if len(lines) > 1]
    line = f"ValueError: no data, program.py:3 in load (traceback as on process {whole})"
    for process in {0, 1, 2} - {whole}:
        assert result.stderr_by_process[process] == [line]
    assert result.said_by_launcher.splitlines()[0] == (
        "lockstep: processes 0-2 of 3 failed: ValueError: no data (exit code 1), "
        "program.py:3 in load (traceback above)"
    )


def test_a_traceback_far_above_is_repeated_in_the_report() -> None:
    program = """
import os, time
if os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    raise ValueError("no data")
time.sleep(0.5)
for line in range(80):
    print("saving", line)
"""
    said = run_lockstep([], program, expect_status=1).said_by_launcher
    assert "failed first: ValueError: no data (exit code 1), program.py:" in said
    assert '    raise ValueError("no data")' in said
    assert "(traceback above)" not in said


def test_a_headline_out_of_view_is_the_last_line_again() -> None:
    calls = "".join(f"def f{i}():\n    f{i + 1}()\n" for i in range(8))
    program = f"""
import os, time
{calls}
def f8():
    raise ValueError("no data")
if os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    f0()
time.sleep(0.5)
for line in range(80):
    print("saving", line)
"""
    said = run_lockstep([], program, expect_status=1).said_by_launcher.splitlines()
    assert "process 1 of 2 failed first: ValueError: no data" in said[0]
    assert said[-1] == said[0]
    assert len(said) > 12


@pytest.mark.parametrize("lost", [False, True], ids=["network", "host"])
def test_a_network_that_is_cut_between_hosts_that_the_launcher_reaches(lost: bool) -> None:
    own, other = (Peer(i, 30, name, name, ()) for i, name in enumerate("fd"))
    words = unreachable_words(own, ["10.0.0.2"], {"10.0.0.2": [other]}, 30.0, 100.0)
    error = ErrorRecord(1.0, 1, f"jax.errors.JaxRuntimeError: UNKNOWN: {words}", "")
    there = Exit(reason="its host was lost") if lost else Exit(exit_code=1)
    endings = [
        EndedProcess(0, Exit(exit_code=1), 2.0, error, host="f"),
        EndedProcess(1, there, 3.0, host="d"),
    ]
    text = headline(endings[0], endings, 5.0)[0]
    assert "process 0 (pid 30 on f) cannot reach host d (process 1)" in text
    if lost:
        assert_unsaid("what is cut is the network between", text)
    else:
        assert (
            "The launcher reaches f and d, so what is cut is the network between these two" in text
        )
        assert "lockstep doctor --hosts shows which hosts reach each other" in text


@pytest.mark.parametrize(
    ("reason", "said"), [("it ended", "it ended. "), ("why?", "why? "), ("closed.", "closed. ")]
)
def test_a_reason_ends_with_one_mark(reason: str, said: str) -> None:
    lost = EndedProcess(0, Exit(reason=reason), 1.0, host="f")
    assert f"failed first: {said}The agent of a lost host" in headline(lost, [lost], 5.0)[0]
