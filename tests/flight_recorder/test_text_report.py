"""The words of the exception and of the report: which process did what, where, and why."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest

from flight_recorder.jobs import FAR, STEP, altered, altered_record, diagnosed, job, permute, steps
from flight_recorder.simulate import STRIDE, Job, Step, raised, record_of, site
from lockstep._run_files import ErrorRecord, Exit
from lockstep.flight_recorder.causes import Pattern
from lockstep.flight_recorder.diagnose import Diagnosis, Kind, diagnose
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.format import Op, State
from lockstep.flight_recorder.phrases import ordinal, place_in_program
from lockstep.flight_recorder.run_records import Caller, Site
from lockstep.flight_recorder.text_report import news, short, table


def ended() -> Diagnosis:
    return diagnosed(steps(50), steps(37), exits={1: Exit(exit_code=0)})


def test_a_process_that_left_early() -> None:
    assert short(ended()).splitlines() == [
        "process 1 (pid 101 on host a) ended (exit code 0) after 37 collectives; process 0 waits "
        "in its 38th: all-reduce (sum) of 1024 x f32, train.py:41 in step",
        "  process 1 (pid 101 on host a): ended (exit code 0) after 37 collectives; its last "
        "calls: 37 x train.py:41 in step",
        "  process 0 (pid 100 on host a): waits for process 1 in all-reduce (sum) of 1024 x f32, "
        "train.py:41 in step; before: 37 x train.py:41 in step",
        "Likely: a loop with fewer steps on process 1: a last batch that only some processes "
        "have, or a stop condition computed from local data; or it skipped an earlier call under "
        "an `if` (--strict finds one on another line).",
    ]


def test_a_process_that_was_killed() -> None:
    made = job(steps(9), steps(5), steps(9))
    text = short(diagnose(made.snapshot({1: Exit(signal=9)})))
    assert text.startswith(
        "process 1 (pid 101 on host a) was killed by SIGKILL (signal 9) after 5 collectives; "
        "processes 0, 2 wait in their 6th: all-reduce (sum) of 1024 x f32, train.py:41 in step\n"
    )
    assert "Likely: a kill -9, or the kernel ran out of memory" in text


def test_of_a_failure_that_the_reader_knows_only_the_waits_of_others_are_news() -> None:
    error = ErrorRecord(0.0, 1, "ValueError: no data", "")

    def failed(made: Job) -> Diagnosis:
        run = made.snapshot({1: Exit(exit_code=1)})
        zero, one = run.processes
        return diagnose(
            dataclasses.replace(run, processes=(zero, dataclasses.replace(one, error=error)))
        )

    alone = failed(job(steps(5), steps(5)))
    assert news(alone, [1], [1]) == ""
    assert news(alone, [0], [0]) == table(alone), "of another process"
    awaited = failed(job(steps(9), steps(5)))
    waits = "process 0 waits in its 6th: all-reduce (sum) of 1024 x f32, train.py:41 in step"
    assert news(awaited, [0, 1], [1]) == waits
    assert news(awaited, [0, 1], [0, 1]) == "", "process 0 has failed by an error of its own"
    assert news(ended(), [1], [1]) == table(ended())


def at_exit(after: int) -> Diagnosis:
    """Process 0 has ended by an exception, and its exit handler calls what process 1 does not."""
    base, other = site(1000, line=41, name="step"), site(FAR, line=60, name="norm")
    sites = {0: (base, other), 1: (base,)}
    made = job([*steps(1), Step(0, FAR)], steps(2), sites=sites)
    run = raised(made.snapshot({0: Exit(exit_code=130)}), made.now + 10_000)
    [zero, one] = run.processes
    last = record_of(run, 0).rings[0].entries[-1]
    error = ErrorRecord((last.entered_ns - after) / 1e9, 130, "KeyboardInterrupt", "")
    zero = dataclasses.replace(zero, error=error)
    return diagnose(dataclasses.replace(run, processes=(zero, one)))


def test_what_exit_handlers_call_after_an_error_is_no_call_of_the_program() -> None:
    text = table(at_exit(2005))
    assert text.startswith(
        "process 0 (pid 100 on host a) failed: KeyboardInterrupt, after 1 collective; process 1 "
    )
    assert "its last call: all-reduce (sum) of 1024 x f32" in text
    assert "norm" not in text
    assert "only process 0" in table(at_exit(0))  # the program itself made the call


def test_the_count_of_what_a_process_ran_agrees_with_the_list() -> None:
    made = job(steps(3), steps(3))
    device = made.devices[STRIDE]
    device.steps.append(dataclasses.replace(STEP, execution=3))
    made.run(random.Random(0))
    text = table(diagnose(made.snapshot({1: Exit(signal=9)})))
    assert "(signal 9) after 3 collectives, inside all-reduce (sum) of 1024 x f32" in text
    assert re.search(r"before: +3 x all-reduce", text), text
    assert " 4 x " not in text


def test_processes_that_raised_are_reported_in_the_past() -> None:
    made = job(steps(9), steps(5))
    run = raised(made.snapshot({1: Exit(signal=9), 0: Exit(exit_code=0)}), made.now + 5)
    text = short(diagnose(run))
    assert "; process 0 waited in its 6th: all-reduce (sum) of 1024 x f32" in text
    assert "  process 0 (pid 100 on host a): waited for process 1 in all-reduce" in text


def test_the_reason_that_the_system_gave() -> None:
    exits = {1: Exit(signal=9, reason="out of memory")}
    text = short(diagnosed(steps(9), steps(5), exits=exits))
    assert "(signal 9) after 5 collectives: out of memory; process 0 waits in its 6th" in text
    assert "(signal 9) after 5 collectives: out of memory; its last calls: 5 x" in text
    assert "Likely: out of memory: process 1 took more than the machine" in text


def test_a_process_that_raised() -> None:
    run = job(steps(9), steps(5)).snapshot({1: Exit(exit_code=1)})
    error = ErrorRecord(0.0, 1, "ValueError: no such file: data.npz", "Traceback ...")
    assert headline(diagnose(altered(run, 1, error=error))) == (
        "process 1 (pid 101 on host a) failed: ValueError: no such file: data.npz, after 5 "
        "collectives; process 0 waits in its 6th: all-reduce (sum) of 1024 x f32, train.py:41 in "
        "step"
    )
    row = "> process 1 (pid 101 on host a): failed after 5 collectives: ValueError: no such file"
    assert row in table(diagnose(altered(run, 1, error=error)))


def test_one_process_with_another_shape() -> None:
    sites: dict[int, tuple[Site, ...]] = {p: (site(1000, line=41, name="step"),) for p in range(4)}
    sites[2] = (*sites[2], site(FAR, line=41, name="step"))
    odd = [*steps(37), Step(0, FAR, elements=1000)]
    text = short(diagnosed(steps(50), steps(50), odd, steps(50), sites=sites))
    assert text.startswith(
        "process 2 (pid 102 on host a) called all-reduce (sum) of 1000 x f32, train.py:41 in step, "
        "where processes 0-1, 3 called all-reduce (sum) of 1024 x f32, train.py:41 in step: as "
        "the 38th collective on 4 devices (0, 2048, 4096, 6144) these must be the same\n"
        "  process 2 (pid 102 on host a): called"
    )
    assert text.endswith("give every process the same shape.")


def test_two_sides_of_equal_weight_are_both_named() -> None:
    made = job(steps(9), [*steps(4), dataclasses.replace(STEP, execution=4, dtype=3)])
    assert headline(diagnose(made.snapshot())) == (
        "process 0 (pid 100 on host a) called all-reduce (sum) of 1024 x f32, train.py:41 in step; "
        "process 1 (pid 101 on host a) called all-reduce (sum) of 1024 x s32, train.py:41 in step: "
        "as the 5th collective on 2 devices (0, 2048) these must be the same"
    )


def test_a_program_on_one_side() -> None:
    base = site(1000, line=41, name="step")
    sites = {0: (base,), 1: (base, site(FAR, line=60, name="evaluate"))}
    found = diagnosed(steps(9), [*steps(4), Step(0, FAR)], sites=sites)
    assert [(each.pattern, each.processes) for each in found.causes] == [
        (Pattern.ONE_SIDED, (1,)),
        (Pattern.SHORTER_LOOP, (1,)),
    ]
    text = short(found)
    assert text.startswith(
        "only process 1 (pid 101 on host a) called all-reduce (sum) of 4 x f32, train.py:60 in "
        "evaluate, where process 0 (pid 100 on host a) called all-reduce (sum) of 1024 x f32, "
        "train.py:41 in step: as the 5th collective on 2 devices (0, 2048) these must be the same\n"
        "  process 1 "
    )
    assert "Likely: evaluate is called under `if jax.process_index() == 0` or another" in text


def test_arguments_of_another_shape_are_reported_beside_each_call() -> None:
    mine = site(1000, line=41, name="step", arguments=("w: f32[8]", "x: f32[100,8]"))
    theirs = site(FAR, line=41, name="step", arguments=("w: f32[8]", "x: f32[96,8]"))
    sites = {0: (mine,), 1: (mine, theirs)}
    found = diagnosed(steps(9), [*steps(4), dataclasses.replace(STEP, program=FAR)], sites=sites)
    assert [cause.pattern for cause in found.causes] == [Pattern.SHAPES]
    text = short(found)
    for process, shape in ((0, "f32[100,8]"), (1, "f32[96,8]")):
        called = rf"process {process} \(.*?\) called [^;:]* train.py:41 in step, given x: "
        assert re.match(f".*{called}{re.escape(shape)}", text), text
    assert text.endswith(
        "Likely: different shapes: x of step is f32[100,8] on process 0, f32[96,8] on process 1 "
        "(100 rows for each device here, 96 there). Data that each process pads or cuts by itself "
        "(a last batch, a ragged split); give every process the same shape."
    )


def test_the_users_line_comes_before_that_of_the_library() -> None:
    library = {"through_file": "/x/site-packages/mc/mc_stats.py", "through_line": 96}
    through = site(1, line=24, name="statistics", function="main", **library)
    text = "train.py:24 in main, through mc_stats.py:96 in statistics"
    assert place_in_program([through]) == text
    in_no_function = dataclasses.replace(through, function="<module>")
    assert place_in_program([in_no_function]) == text.replace(" in main", "")
    plain = site(2, line=41, name="step")
    assert place_in_program([through, plain]) == f"{text} or train.py:41 in step"


def crossing() -> Diagnosis:
    plan = {
        0: [Step(0, FAR), Step(1, 2 * FAR)],
        STRIDE: [Step(1, 2 * FAR), Step(0, FAR)],
        2 * STRIDE: [Step(1, 2 * FAR)],
    }
    sites = {p: (site(FAR, line=3, name="rows"), site(2 * FAR, line=9, name="cols")) for p in plan}
    made = Job([[0, STRIDE], [0, STRIDE, 2 * STRIDE]], plan, sites=sites)
    made.sites = dict.fromkeys(range(3), sites[0])
    made.run(random.Random(0))
    return diagnose(made.snapshot())


def test_two_cliques_in_opposite_order() -> None:
    text = short(crossing())
    assert text.startswith(
        "a circle of waits: process 0 waits for process 1 in all-reduce (sum) of 4 x f32, "
        "train.py:3 in rows on 2 devices (0, 2048); process 1 waits for process 0 in all-reduce "
        "(sum) of 4 x f32, train.py:9 in cols on 3 devices (0, 2048, 4096)\n"
    )
    assert "Likely: collectives over different mesh axes in opposite order" in text
    assert "  process 2 (pid 102 on host a): waits for process 0 in" in text


def test_permutes_that_do_not_fit() -> None:
    made = job([permute(1, 1)], [permute(-1, 0, program=FAR)])
    text = short(diagnose(made.snapshot()))
    assert (
        "process 0 (pid 100 on host a) called collective-permute of 16 B to rank 1 and from" in text
    )
    assert "the send does not match the receive" in text
    assert "Likely: ppermute with another list of pairs" in text


def test_a_straggler_is_described_without_blame() -> None:
    made = job(steps(9), steps(9))
    late = Job(made.cliques, {d: list(v.steps) for d, v in made.devices.items()})
    late.devices[STRIDE].stops_at = 5
    late.run(random.Random(0))
    found = diagnose(late.snapshot())
    assert headline(found) == (
        "process 1 (pid 101 on host a) has not arrived yet; process 0 waits in its "
        "6th: all-reduce (sum) of 1024 x f32"
    )
    assert "Likely" not in short(found)
    assert "process 1 (pid 101 on host a): in no collective; it ran 5 collectives" in short(found)


def test_calls_that_differ_are_named_from_the_innermost_to_the_first_that_differs() -> None:
    average = Caller("/home/u/utils.py", 5, "average")
    callers = {
        5: (
            average,
            Caller("/home/u/train.py", 30, "main", "5-15"),
            Caller("/home/u/train.py", 99, "run"),
        ),
        7: (
            Caller("/mnt/u/utils.py", 5, "average"),
            Caller("/home/u/train.py", 30, "main", "21-31"),
            Caller("/home/u/train.py", 99, "run"),
        ),
    }
    ours, theirs = (dataclasses.replace(STEP, execution=3, site=line) for line in (5, 7))
    run = job([*steps(3), ours], [*steps(3), theirs]).snapshot()
    for index, line in ((0, 5), (1, 7)):
        run = altered(run, index, callers={line: callers[line]})
    text = short(diagnose(run))
    what = "all-reduce (sum) of 1024 x f32, train.py:41 in step, called from utils.py:5 in average"
    assert text.startswith(
        f"process 0 (pid 100 on host a) called {what}, from train.py:30:5-15 in main; "
        f"process 1 (pid 101 on host a) called {what}, from train.py:30:21-31 in main: as the 4th"
    )
    assert (
        f"  process 1 (pid 101 on host a): called {what}, from train.py:30:21-31 in main; bef"
        in text
    )
    assert text.endswith("which JAX does not order.")
    assert "step is called from different places on purpose" in table(diagnose(run))


def test_collectives_that_raised_for_no_reason_in_the_records_are_not_called_sound() -> None:
    made = job([*steps(3), dataclasses.replace(STEP, execution=3)], steps(4))
    made.run(random.Random(0))
    ring = record_of(made.snapshot(), 0).rings[0]
    *entries, last = ring.entries
    late = last._replace(state=State.RAISED)
    ring = dataclasses.replace(ring, entries=(*entries, late))
    run = altered_record(made.snapshot(), 0, rings=(ring,))
    assert headline(diagnose(run)) == (
        "collectives raised on process 0, and the records do not show why"
    )
    reason = "jax.errors.JaxRuntimeError: INTERNAL: MPI error: lockstep: waited 60 s. Not arrived"
    told = altered(run, 0, error=ErrorRecord(10.0**9, 1, reason, ""))
    assert headline(diagnose(told)) == "collectives raised on process 0: waited 60 s. Not arrived"


def test_calls_that_read_alike_are_one() -> None:
    sites = {0: (site(1000, line=23, name="step"), site(1000, 2, line=23, name="step"))}
    other = (site(1000, 3, line=44, name="step"),)
    calls = [dataclasses.replace(s, channel=c) for s in steps(6) for c in (1, 2)]
    gone = {0: Exit(exit_code=0)}
    text = short(diagnosed(calls, calls, exits=gone, sites=sites))
    assert "its last calls: 12 x train.py:23 in step" in text, text
    calls = [dataclasses.replace(s, channel=c) for s in steps(6) for c in (1, 2, 3)]
    text = short(diagnosed(calls, calls, exits=gone, sites={0: sites[0] + other}))
    assert "6 x (2 x train.py:23 in step, train.py:44 in step)" in text, text


def test_nothing_wrong() -> None:
    exits = {0: Exit(exit_code=0), 1: Exit(exit_code=0)}
    assert headline(diagnosed(steps(3), steps(3), exits=exits)) == (
        "nothing is wrong: 2 processes ended"
    )


def test_a_process_of_which_nothing_is_known() -> None:
    nothing = {"record": None, "problems": ("there is no recorder file",)}
    run = altered(job(steps(5), steps(0)).snapshot(), 1, **nothing)
    found = diagnose(run)
    assert (found.kind, found.culprits) == (Kind.WAITING, (1,))
    assert "  process 1: unknown: there is no recorder file" in short(found)
    neither = headline(diagnose(altered(run, 0, **nothing)))
    assert neither == "nothing is known: there is no record of processes 0-1"
    over = job(steps(3), steps(3)).snapshot({0: Exit(exit_code=0)})
    assert headline(diagnose(altered(over, 1, **nothing))) == (
        "there is no record of process 1; no other process waits in a collective"
    )


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (112, "112th"), (121, "121st")],
)
def test_ordinals(number: int, word: str) -> None:
    assert ordinal(number) == word


def test_every_operation_has_its_words() -> None:
    for op in set(Op) - {Op.PROGRAM}:
        made = job([dataclasses.replace(STEP, op=op, reduction=0)], [])
        assert re.search("of (4 KiB|1024 x f32)", short(diagnose(made.snapshot())))
