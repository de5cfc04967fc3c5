"""The words that tell which process failed first."""

from __future__ import annotations

import dataclasses
import errno
import signal
import sys

import pytest

from lockstep._run_files import STOPPED, ErrorRecord, Exit
from lockstep.launch.failure_report import headline, told_already
from lockstep.processes.first_failure import (
    EndedProcess,
    by_culprit,
    first_failure,
    last_words,
    not_started,
)


def ended(
    process_id: int,
    status: int,
    at: float,
    error: ErrorRecord | None = None,
    words: tuple[str, ...] = (),
    was_stopped: bool = False,
) -> EndedProcess:
    exit = Exit.of(status, reason=STOPPED if was_stopped else None)
    return EndedProcess(process_id, exit, at, error, words)


def record(time: float, summary: str = "ValueError: x", code: int = 1) -> ErrorRecord:
    return ErrorRecord(time, code, summary, f"Traceback (most recent call last):\n{summary}\n")


def test_the_error_that_happened_first_counts_not_the_process_that_ended_first() -> None:
    later = ended(0, 1, 10.5, record(10.4))
    for first in (ended(1, 1, 12.0, record(10.1)), ended(1, -signal.SIGKILL, 10.1)):
        assert first_failure([later, first], 11.0) is first


def test_a_death_is_noticed_later_than_it_happens() -> None:
    # Process 1 raised because process 0 was killed, and was a little faster than the launcher.
    raised, killed = ended(1, 1, 10.8, record(10.1)), ended(0, -signal.SIGKILL, 10.2)
    assert first_failure([raised, killed], stopping_at=10.2) is killed
    # Noticed only after the launcher had heard of the exception.
    killed = ended(0, -signal.SIGKILL, 10.9)
    assert first_failure([raised, killed], stopping_at=10.2) is killed
    # The launcher's own doing.
    killed = ended(0, -signal.SIGKILL, 10.9, was_stopped=True)
    assert first_failure([raised, killed], stopping_at=10.2) is raised
    # JAX aborts a process that has lost another.
    aborted = ended(0, -signal.SIGABRT, 10.9)
    assert first_failure([raised, aborted], stopping_at=10.2) is raised


@pytest.mark.parametrize(
    "said",
    [
        "JaxRuntimeError: INTERNAL: MPI error: lockstep: process 1 (pid 7 on e) has ended, or its "
        "host cannot be reached: process 0 (pid 5 on b) has lost its connection",
        "lockstep: process 2 (pid 8 on d) has lost JAX's coordination service at e:1: its process, "
        "on the host of process 1, was killed or cannot be reached.",
    ],
)
def test_a_lost_host_is_first_however_late_it_is_noticed(said: str) -> None:
    """The end of its agent took 2 s on a busy machine, and the others had raised at once."""
    raised = ended(2, 1, 10.8, record(10.1, said))
    lost = EndedProcess(1, Exit(reason="its host was lost"), 12.2)
    assert first_failure([raised, lost], stopping_at=10.2) is lost
    elsewhere = dataclasses.replace(lost, process_id=3)
    assert first_failure([raised, elsewhere], stopping_at=10.2) is raised
    # The launcher kills a process that does not end, so this is no cause.
    killed = ended(1, -signal.SIGKILL, 12.2)
    assert first_failure([raised, killed], stopping_at=10.2) is raised


def test_no_failure() -> None:
    assert first_failure([ended(0, 0, 1.0), ended(1, 0, 2.0)], float("inf")) is None


def test_status() -> None:
    assert ended(0, 3, 1.0).status == 3
    assert ended(0, -signal.SIGSEGV, 1.0).status == 139
    # It recorded sys.exit(5), then had to be killed while its exit handlers ran.
    assert ended(0, -signal.SIGKILL, 1.0, record(0.5, code=5)).status == 5


def test_an_exception_is_told_with_its_traceback() -> None:
    failed = ended(1, 1, 2.0, record(1.0, "KeyError: 'a'"))
    text = "\n".join(headline(failed, [ended(0, -2, 3.0), failed], 2.0))
    assert text.startswith("process 1 of 2 failed first: KeyError: 'a' (exit code 1)\n")
    assert "    Traceback (most recent call last):\n    KeyError: 'a'" in text
    assert "process 0" not in text


def test_a_signal_is_told_with_its_name_likely_cause_and_last_words() -> None:
    killed = ended(0, -signal.SIGKILL, 2.0, None, ("loading", "training"))
    text = "\n".join(headline(killed, [killed], 2.0))
    assert text.startswith(
        "process 0 of 1 failed first: killed by SIGKILL (signal 9). Likely a kill -9"
    )
    assert "kernel ran out of memory" in text
    assert "    loading\n    training" in text


DUMP = [f'  File "train.py", line {i} in step' for i in range(100)]
CHECK = "F1121 18:59:24.123456   4711 hlo.cc:12] Check failed: width >= 8 (2 vs. 8)"
PYTHON = "Fatal Python error: Aborted"


@pytest.mark.parametrize(
    ("above", "first"),
    [
        ([CHECK, "*** Check failure stack trace: ***", "", PYTHON, ""], CHECK),
        (["terminate called after throwing an instance of 'X'", PYTHON], "terminate called"),
        (["step 1", "a.c:3: f: Assertion `x > 0' failed.", PYTHON], "a.c:3: f: Assertion `x"),
        (["F0 is a note", PYTHON, ""], PYTHON),
    ],
)
def test_the_reason_stands_above_the_stacks_that_follow_it(above: list[str], first: str) -> None:
    words = last_words([*above, *DUMP], -signal.SIGABRT)
    assert words[0].startswith(first)
    assert words[1:] == ("...", *DUMP[-20:])
    assert last_words([*above, *DUMP[:3]], -signal.SIGABRT) == (*above, *DUMP[:3])
    assert last_words([*above, *DUMP], 1) == tuple(DUMP[-20:])


def test_a_process_that_could_make_no_thread_says_which_limit_to_raise() -> None:
    reason = "F1128 00:19:40.6 29450 env.cc:93] Check failed: Thread creation via pthread_create()"
    aborted = ended(0, -signal.SIGABRT, 2.0, None, (reason, "..."))
    text = headline(aborted, [aborted], 2.0)[0]
    assert "It could make no more threads: raise the limit (ulimit -u" in text.splitlines()[0]


def test_an_engines_error_of_the_first_process_names_it_once() -> None:
    said = "JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 0 (pid 7 on d): no memory."
    failed = ended(0, 1, 2.0, record(1.0, said))
    text = headline(failed, [failed], 2.0)[0].splitlines()[0]
    assert text == "process 0 of 1 failed first: no memory. (exit code 1)"


def test_the_stack_of_the_thread_that_crashed_is_shown_from_its_innermost_frame() -> None:
    above = [PYTHON, "", "Thread 0x1 (most recent call first):", *DUMP, ""]
    crashed = ["Current thread 0x2 (most recent call first):", *DUMP]
    assert last_words([*above, *crashed], -signal.SIGSEGV) == (PYTHON, "...", *crashed[:20])
    alone = last_words(["training", *crashed], -signal.SIGSEGV)
    assert alone == tuple(crashed[:20])


def test_what_to_do_when_a_process_cannot_be_started() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", sys.executable)
    assert "Python itself cannot be executed" in not_started(refused)
    assert "ulimit" not in not_started(refused)
    assert "raise the limit (ulimit -n)" in not_started(OSError(errno.EMFILE, "Too many"))
    assert "limit on processes is reached" in not_started(OSError(errno.EAGAIN, "Again"))
    assert "--log-dir cannot be written" in not_started(OSError(errno.ENOSPC, "No space", "x.log"))


def test_a_real_time_signal_has_no_name() -> None:
    killed = ended(0, -40, 2.0)
    assert "failed first: killed by signal 40" in headline(killed, [killed], 2.0)[0]


def test_consequences_come_after_the_headline_in_their_order() -> None:
    endings = [
        ended(0, 1, 3.0, record(2.5, "B: later")),
        ended(1, -6, 2.2),
        ended(2, 1, 3.0, record(2.0, "A: first")),
        ended(3, -9, 9.0, was_stopped=True),
    ]
    report = headline(endings[2], endings, 2.1 + 0.2)
    assert report[1:] == [
        "process 1 failed 0.2 s later: killed by SIGABRT (signal 6)",
        "process 0 failed 0.5 s later: B: later (exit code 1)",
    ]


def test_an_error_of_the_engine_is_told_without_what_jax_puts_in_front_and_once() -> None:
    said = "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 (pid 7) ended"
    inline = "ValueError: UNKNOWN: MPI error: lockstep: process 1 (pid 7) ended"
    endings = [ended(0, 1, 3.0, record(2.0, said)), ended(2, 1, 3.0, record(2.5, inline))]
    first, second = headline(endings[0], endings, 3.0)
    assert first == "process 1 (pid 7) ended; so process 0 of 2 failed (exit code 1)"
    assert second == "process 2 failed 0.5 s later: the same"


@pytest.mark.parametrize("of_jaxlib_0_8", ["", "Buffer Definition Event: "])
def test_the_stack_shown_is_that_of_the_process_that_caused_an_error_of_all(
    of_jaxlib_0_8: str,
) -> None:
    said = f"JaxRuntimeError: UNKNOWN: {of_jaxlib_0_8}MPI error: lockstep: only process 1 called it"
    endings = [ended(p, 1, 3.0, record(2.0 + p, said)) for p in range(3)]
    assert by_culprit(endings[0], endings, (1,)) is endings[1]
    assert by_culprit(endings[0], endings, ()) is endings[0]
    own = ended(0, 1, 3.0, record(2.0, "KeyError: 'a'"))
    assert by_culprit(own, [own, *endings[1:]], (1,)) is own
    other = ended(1, 1, 3.0, record(2.5, said.replace("called it", "is gone")))
    assert by_culprit(endings[0], [endings[0], other], (1,)) is endings[0]


def test_the_text_of_an_engines_error_is_told_once_and_before_the_stack() -> None:
    said = "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 ended"
    stack = 'Traceback (most recent call last):\n  File "/u/a.py", line 3, in main\n    step()\n'
    text = f"{stack}{said}\n  process 1: ended\nLikely: a\n"
    failed = ended(0, 1, 3.0, ErrorRecord(2.0, 1, said, text))
    assert headline(failed, [failed], 3.0) == [
        "process 1 ended; so process 0 of 1 failed (exit code 1)\n"
        "      process 1: ended\n    Likely: a\n"
        "    Traceback (most recent call last):\n"
        '      File "/u/a.py", line 3, in main\n        step()'
    ]
    assert headline(failed, [failed], 3.0, full=True)[0].count("process 1 ended") == 2


def test_a_table_is_not_news_when_the_first_failure_says_the_same() -> None:
    said = "lockstep: process 1 (pid 7) ended after 8 collectives; process 0 waits in its 9th: x"
    first = ended(0, 1, 3.0, record(2.0, said))
    table = "process 1 (pid 7) ended{} after 8 collectives; process 0 {} in its 9th: x\n\nrows"
    assert told_already(table.format(" (exit code 0)", "waited"), first)
    assert not told_already(table.format(" (exit code 3)", "waited"), first)
    assert not told_already(table.format("", "waits"), ended(0, -9, 3.0))


def test_consequences_that_are_the_same_are_one_line() -> None:
    said = "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 (pid 7) ended"
    first = ended(0, 1, 1.0, record(1.0, said))
    same = [ended(i, 1, 2.0, record(1.0 + i / 10, said)) for i in range(1, 8)]
    [_, line] = headline(first, [first, *same], 5.0)
    assert line == "processes 1-7 failed 0.1 to 0.7 s later: the same"


@pytest.mark.parametrize("how", ["failed: KeyError: 'lr'", "was killed by SIGKILL (signal 9)"])
def test_a_consequence_does_not_repeat_its_cause(how: str) -> None:
    said = f"jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 (pid 7) {how}"
    own = record(2.0, "KeyError: 'lr'") if "Key" in how else None
    endings = [ended(p, 1, 3.0, record(2.5, said)) for p in (0, 2)]
    first = ended(1, 1 if own else -9, 2.0, own)
    assert headline(first, [first, *endings], 3.0)[1:] == [
        "processes 0, 2 failed 0.5 s later: process 1 had failed"
    ]
    of_another = ended(0, 1, 3.0, record(2.5, said.replace("process 1", "process 3")))
    assert "process 3 (pid 7)" in headline(first, [first, of_another], 3.0)[1]


def test_many_consequences_are_counted() -> None:
    first = ended(0, 1, 1.0, record(1.0))
    others = [ended(i, 1, 2.0, record(2.0, f"KeyError: {i}")) for i in range(1, 20)]
    assert headline(first, [first, *others], 5.0)[-1] == "11 more failed later"


AT = '  File "/u/train.py", line 3, in <module>\n    f()\n  File "/u/a.py", line 7, in f\n    g()\n'


def raised(process_id: int, at: float, what: str = "ValueError: x") -> EndedProcess:
    text = f"Traceback (most recent call last):\n{AT}{what}\n"
    return ended(process_id, 1, at + 0.5, ErrorRecord(at, 1, what, text))


def test_an_error_of_several_processes_is_told_once_with_their_numbers_and_its_line() -> None:
    endings = [raised(0, 2.1), raised(1, 2.0), raised(2, 2.2)]
    [told] = headline(endings[1], endings, 3.0)
    assert told.startswith(
        "processes 0-2 of 3 failed: ValueError: x (exit code 1), a.py:7 in f\n    Traceback"
    )
    other = raised(3, 2.5, "KeyError: 1")
    first, later = headline(endings[1], [*endings, other], 3.0)
    assert first.startswith("processes 0-2 of 4 failed first: ValueError: x (exit code 1), a.py:7")
    assert later == "process 3 failed 0.5 s later: KeyError: 1 (exit code 1)"


def test_a_traceback_that_is_in_view_is_not_repeated() -> None:
    one, two = raised(0, 2.0), raised(1, 2.1)
    lines = ("a warning", *one.record.traceback.splitlines()) if one.record else ()
    seen = dataclasses.replace(one, on_screen=lines)
    line = "processes 0-1 of 2 failed: ValueError: x (exit code 1), a.py:7 in f (traceback above)"
    assert headline(seen, [seen, two], 3.0) == [line]
    # Process 0 has printed it for both.
    assert headline(two, [seen, two], 3.0) == [line]
    cut = dataclasses.replace(one, on_screen=lines[2:])
    assert "Traceback (most" in headline(cut, [cut, two], 3.0)[0]


def test_the_stack_of_an_engines_error_that_is_in_view_is_not_repeated() -> None:
    said = "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 ended"
    stack = f"Traceback (most recent call last):\n{AT}"
    failed = ended(0, 1, 3.0, ErrorRecord(2.0, 1, said, f"{stack}{said}\n  process 1: ended\n"))
    seen = dataclasses.replace(
        failed, on_screen=(*stack.splitlines(), "lockstep: process 1 ended (whole text: ...)")
    )
    assert headline(seen, [seen], 3.0) == [
        "process 1 ended; so process 0 of 1 failed (exit code 1)\n      process 1: ended"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "processes 1, 3-5 ended after 2 programs; process 0 waits",
            "processes 1, 3-5 ended after 2 programs; process 0 waits; so process 0 of 6 failed "
            "(exit code 1)",
        ),
        (
            "waited 10 s. process 2 has not arrived yet",
            "waited 10 s. process 2 has not arrived yet; so process 0 of 6 failed (exit code 1)",
        ),
        ("only processes 0-1 called it", "process 0 of 6 failed first: only processes 0-1 called "),
        ("waited 10 s", "process 0 of 6 failed first: waited 10 s (exit code 1)"),
    ],
)
def test_what_all_have_raised_begins_with_the_process_that_it_is_about(
    text: str, line: str
) -> None:
    said = f"JaxRuntimeError: UNKNOWN: MPI error: lockstep: {text}"
    endings = [ended(0, 1, 3.0, record(2.0, said)), *(ended(p, 0, 1.0) for p in range(1, 6))]
    assert headline(endings[0], endings, 3.0)[0].startswith(line)
