"""What a job that failed prints: a traceback of several processes once, and its line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lockstep._run_files import ErrorRecord, Exit
from lockstep.job.topology import Peer
from lockstep.launch.failure_report import headline, is_consequence, last_line
from lockstep.processes.first_failure import EndedProcess
from lockstep.watchdog.silent_hosts import unreachable_words
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
    result = run_lockstep(options, RAISES, n=3, expect_status=1, forked=True)
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
    said = run_lockstep([], program, expect_status=1, forked=True).said_by_launcher
    assert "failed first: ValueError: no data (exit code 1), program.py:" in said
    assert '    raise ValueError("no data")' in said
    assert_unsaid("(traceback above)", said)


def test_the_last_line_is_the_headline_again() -> None:
    program = f"""
import os, time
if os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    raise ValueError("no data {"x" * 5} {" y" * 200}")
time.sleep(0.5)
raise KeyError("weights")
"""
    said = run_lockstep([], program, expect_status=1, forked=True).said_by_launcher.splitlines()
    assert "process 1 of 2 failed first: ValueError: no data xxxxx" in said[0]
    # A long text is cut, and not the line of the program.
    start = "lockstep: process 1 of 2 failed first: ValueError: no data xxxxx y y y"
    assert said[-1].startswith(start)
    assert said[-1].endswith(" y ..., program.py:4")
    assert len(said[-1]) < len(said[0]) - 100


def test_a_report_of_one_line_has_what_to_type_in_it(tmp_path: Path) -> None:
    program = """
import os, pathlib
name = f"attempt_0/process_{os.environ['LOCKSTEP_PROCESS_ID']}/recorder.bin"
pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], name).write_bytes(b"not a record")
raise ValueError("no data")
"""
    [line] = run_lockstep(
        [], program, n=1, expect_status=1, forked=True
    ).said_by_launcher.splitlines()
    start = "lockstep: process 0 of 1 failed first: ValueError: no data (exit code 1), program.py:5"
    assert line.startswith(f"{start} (traceback above); for details: lockstep report /")


def test_an_error_raised_from_that_of_a_collective_is_a_consequence() -> None:
    engines = "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 ended"
    text = f"{engines}\n\nThe above exception was the direct cause\n\nRuntimeError: no step"
    raised = ErrorRecord(1.0, 1, "RuntimeError: no step", text)
    assert is_consequence(EndedProcess(0, Exit(exit_code=1), 2.0, raised))
    own = ErrorRecord(1.0, 1, "RuntimeError: no step", "RuntimeError: no step")
    assert not is_consequence(EndedProcess(0, Exit(exit_code=1), 2.0, own))
    whole = ErrorRecord(1.0, 1, engines, engines)
    assert not is_consequence(EndedProcess(0, Exit(exit_code=1), 2.0, whole))


GLOO = "ValueError: UNKNOWN: Gloo all-reduce failed: Connection reset by peer"
AT = '  File "/home/u/train.py", line 9, in <module>\n    step()\n'


def test_the_process_that_has_left_is_named_beside_gloos_error() -> None:
    lost = ErrorRecord(3.0, 1, GLOO, f"Traceback (most recent call last):\n{AT}{GLOO}")
    left, failed = EndedProcess(1, Exit(exit_code=0), 2.9), EndedProcess(0, Exit(1), 4.0, lost)
    endings = [failed, left, EndedProcess(2, Exit(exit_code=0), 9.0)]
    said = "train.py:9. Process 1 had ended by then (exit code 0), and takes part no more"
    assert said in headline(failed, endings, 5.0)[0]
    assert said in last_line(failed, endings, 3, "")
    own = dataclasses.replace(failed, record=dataclasses.replace(lost, summary="ValueError: x"))
    assert_unsaid("had ended by then", headline(own, [own, left], 5.0)[0])
    # Where the records name it, the line of the process that has failed stands beside that.
    found = "process 1 ended after 3 programs; process 0 waited in its 4th: another program\n rows"
    assert headline(failed, endings, 5.0, found=found)[0].splitlines() == [
        f"{found.splitlines()[0]}; process 0 was at train.py:9",
        " rows",
    ]


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


def test_the_last_line_of_a_deadline_has_the_line_of_the_program() -> None:
    late = (
        "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: all-reduce (sum) of 1 x f32 "
        "(collective 4) on 2 devices (0, 2048): process 0 (pid 3 on a) waited 20 s. Not arrived: "
        "process 1 (pid 4 on a). --collective-timeout sets the limit; 0 means none."
    )
    rows = (
        "    process 1 has not arrived yet; process 0 waits in its 4th, train.py:13\n      rows\n"
    )
    record = ErrorRecord(1.0, 1, late, f"Traceback (most recent call last):\n{AT}{late}\n{rows}")
    failed = EndedProcess(0, Exit(exit_code=1), 2.0, record)
    assert last_line(failed, [failed], 2, "") == (
        "process 1 has not arrived yet; process 0 waits in its 4th, train.py:13; "
        "process 0 of 2 failed: it waited 20 s (exit code 1)"
    )


def test_settings_that_differ_are_in_the_last_line() -> None:
    record = ErrorRecord(1.0, 1, "ValueError: cannot reshape array", "ValueError: cannot reshape")
    failed = EndedProcess(0, Exit(exit_code=1), 2.0, record)
    differences = "devices (4 on process 0, 1 on process 1)"
    said = f"Likely: the processes differ in {differences}"
    assert last_line(failed, [failed], 2, "", differences).endswith(f"(exit code 1). {said}")
    # gloo aborts a process without a record: the records of all say that they have differed.
    aborted = EndedProcess(0, Exit(signal=6), 2.0)
    found = "process 0 called step; process 1 called step"
    assert said in headline(aborted, [aborted], 3.0, found=found, differences=differences)[0]
    assert last_line(aborted, [aborted], 2, found, differences).endswith(said)
