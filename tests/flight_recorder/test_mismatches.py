"""What `diagnose` makes of calls that differ: look-alikes, permutes, rows of a report."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_recorder.jobs import FAR, STEP, diagnosed, job, patterns, permute, steps
from flight_recorder.simulate import STRIDE, Job, Step, site
from lockstep._run_files import Exit
from lockstep.flight_recorder import format
from lockstep.flight_recorder.calls import Call, rounds
from lockstep.flight_recorder.causes import Pattern
from lockstep.flight_recorder.diagnose import Kind, diagnose, is_of_threads
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.format import Op
from lockstep.flight_recorder.run_records import Site
from lockstep.flight_recorder.text_report import short


@pytest.mark.parametrize("processes", [2, 5])
def test_look_alikes_in_opposite_order_differ_by_their_program(processes: int) -> None:
    one, two = Step(0, FAR, elements=4), Step(0, 2 * FAR, elements=4)
    sites = {p: (site(FAR, name="norm"), site(2 * FAR, name="loss")) for p in range(processes)}
    plans = [[*steps(3), one, two]] * (processes - 1) + [[*steps(3), two, one]]
    found = diagnosed(*plans, sites=sites)
    assert found.kind is Kind.MISMATCH
    assert found.place is not None
    assert found.place.sequence == 3
    assert found.culprits == ((0, 1) if processes == 2 else (processes - 1,))
    assert patterns(found)[0] is Pattern.OPPOSITE_ORDER


def test_a_program_that_all_but_one_have_blames_the_one() -> None:
    base, other = site(1000, line=41, name="step"), site(FAR, line=60, name="evaluate")
    sites = {0: (base, other), 1: (base,), 2: (base, other)}
    more = [*steps(4), Step(0, FAR)]
    found = diagnosed(more, steps(9), more, sites=sites)
    assert (found.kind, found.culprits) == (Kind.ONE_SIDED, (1,))
    assert found.causes[0].processes == (0, 2)


def test_a_function_that_was_compiled_again_is_on_both_sides() -> None:
    """JAX compiles a training step again for the second step, whose weights are on all devices."""
    first, second = (site(n * FAR, line=20, name="step") for n in (1, 2))
    norm = site(3 * FAR, line=29, name="norm")
    sites = {0: (first, norm), 1: (first, second)}
    plans = [[Step(0, FAR), Step(0, 3 * FAR)], [Step(0, FAR), Step(0, 2 * FAR)]]
    found = diagnosed(*plans, sites=sites)
    assert (found.kind, found.culprits) == (Kind.ONE_SIDED, (0,))
    assert patterns(found) == [Pattern.ONE_SIDED]
    assert "only process 0 (pid 100 on host a) called" in headline(found)
    assert "Likely: norm is called under `if jax.process_index() == 0`" in short(found)


def test_two_functions_that_one_side_each_has_called_may_be_a_branch_or_an_order() -> None:
    sites = {0: (site(FAR, name="norm"),), 1: (site(2 * FAR, name="step"),)}
    found = diagnosed([Step(0, FAR)], [Step(0, 2 * FAR)], sites=sites)
    assert patterns(found)[0] is Pattern.TWO_SIDED
    assert "Likely: norm or step is called under `if jax.process_index() == 0`" in short(found)
    assert "or all processes call both, in opposite order" in short(found)


def taking(program: int, *arguments: str, **more) -> Site:
    return site(program, **({"line": 41, "name": "step"} | more), arguments=arguments)


def test_a_small_function_of_jax_on_two_lines_is_no_last_batch() -> None:
    mine = taking(1000, "a: f32[100]", name="_reduce_sum")
    theirs = taking(FAR, "a: f32[96]", name="_reduce_sum", line=60)
    sites = {0: (mine,), 1: (theirs,)}
    found = diagnosed([Step(0, 1000)], [Step(0, FAR)], sites=sites)
    assert Pattern.SHAPES not in patterns(found)


THREADS = {
    p: (
        site(1000, line=41, name="step", thread="MainThread"),
        site(FAR, line=60, name="_identity_fn", thread="prefetch"),
    )
    for p in range(2)
}


def test_calls_that_two_threads_have_dispatched() -> None:
    mine, theirs = [*steps(4)], [*steps(2), Step(0, FAR), *steps(4)[2:]]
    found = diagnosed(mine, theirs, sites=THREADS)
    assert (found.kind, patterns(found)) == (Kind.MISMATCH, [Pattern.THREADS])
    assert found.causes[0].threads == ("MainThread", "prefetch")
    text = short(found)
    assert "Likely: several threads dispatch collectives (step: MainThread, _identity_fn: " in text
    assert "jax.make_array_from_process_local_data does without it." in text


def test_threads_that_python_named_by_the_order_of_their_start() -> None:
    first, second = "Thread-1 (work)", "Thread-2 (work)"
    sites = {
        p: (
            site(1000, line=41, name="step", thread=(first, second)[p]),
            site(FAR, line=60, name="loss", thread=(second, first)[p]),
        )
        for p in range(2)
    }
    mine, theirs = [*steps(1), Step(0, FAR)], [Step(0, FAR), *steps(1)]
    found = diagnosed(mine, theirs, sites=sites)
    assert (patterns(found), is_of_threads(found)) == ([Pattern.THREADS], True)


def test_one_thread_that_trains_alone_has_compiled_another_program() -> None:
    """The main thread has only prepared the training: no order of threads is at fault."""
    before = site(1000, line=3, name="init", thread="MainThread")
    train = {"line": 41, "name": "step", "thread": "Thread-1 (train)"}
    sites = {p: (before, site(program, **train)) for p, program in enumerate((FAR, 2 * FAR))}
    plans = ([*steps(1), Step(0, FAR)], [*steps(1), Step(0, 2 * FAR)])
    assert patterns(diagnosed(*plans, sites=sites)) == [Pattern.RETRACED]


def test_processes_with_one_thread_each_of_another_name_have_another_fault() -> None:
    found = diagnosed(steps(4), [Step(0, FAR)], sites=THREADS)
    assert Pattern.THREADS not in patterns(found)


def test_permutes_of_different_programs() -> None:
    ring = [permute(1, 1), permute(0, 0)]
    wrong = [permute(-1, 0, program=FAR)]
    found = diagnosed([*ring[:1]], wrong)
    assert found.kind is Kind.PERMUTE
    assert found.culprits == (0, 1)
    assert Pattern.PERMUTATION in patterns(found)


def test_a_member_that_is_rightly_ahead_does_not_outvote_the_other_two() -> None:
    """Process 1 has left out a receive; process 2 is in the later permute, as it should be."""
    later = permute(2, execution=1)
    sent = permute(-1, 1, execution=0)
    wrong = permute(0, execution=1)
    found = diagnosed([sent, later], [wrong], [permute(-1, 0, execution=1)])
    assert (found.kind, found.culprits) == (Kind.PERMUTE, (0, 1))


def test_permutes_of_different_length() -> None:
    found = diagnosed([permute(-1, 1, elements=8)], [permute(0, elements=4)])
    assert found.kind is Kind.PERMUTE
    assert patterns(found) == [Pattern.SHAPES]


def test_a_permute_that_no_device_sends() -> None:
    made = job([permute(1)], [])
    found = diagnose(made.snapshot({1: Exit(exit_code=0)}))
    assert (found.kind, found.culprits) == (Kind.ENDED, (1,))


def test_permutes_match_although_the_rings_have_wrapped() -> None:
    there = [permute(-1, 1, execution=i) for i in range(50)]
    back = [permute(0, execution=i) for i in range(49)]
    made = job(there, back, ring=8)
    found = diagnose(made.snapshot({1: Exit(exit_code=0)}))
    assert (found.kind, found.culprits) == (Kind.ENDED, (1,))


def test_a_sum_on_one_side_and_a_permute_on_the_other() -> None:
    found = diagnosed(steps(1), [permute(0, 0)])
    assert found.kind is Kind.MISMATCH
    assert found.culprits == (0, 1)


def test_two_lambdas_are_not_one_function() -> None:
    mine, theirs = site(1000, line=3, name="_lambda"), site(FAR, line=9, name="_lambda")
    sites = {0: (mine, theirs), 1: (mine, theirs)}
    found = diagnosed([Step(0, 1000)], [Step(0, FAR)], sites=sites)
    assert Pattern.RETRACED not in patterns(found)
    assert Pattern.OPPOSITE_ORDER in patterns(found)
    sites = {0: (mine,), 1: (dataclasses.replace(mine, program=FAR, fingerprint="other"),)}
    found = diagnosed([Step(0, 1000)], [Step(0, FAR)], sites=sites)
    assert patterns(found) == [Pattern.RETRACED]


def test_a_step_more_or_less_of_one_program() -> None:
    plans = (steps(9), [*steps(9)[:3], *steps(9)[4:]])
    found = diagnosed(*plans)
    assert found.kind is Kind.MISMATCH
    assert [(c.pattern, c.processes) for c in found.causes] == [(Pattern.EXECUTIONS, (0,))]


def test_a_branch_inside_one_program() -> None:
    sites = {p: (site(1000, 1, name="step"), site(1000, 2, name="step")) for p in (0, 1)}
    found = diagnosed([Step(0, 1000, 1)], [Step(0, 1000, 2)], sites=sites)
    assert patterns(found) == [Pattern.BRANCH_INSIDE]


@pytest.mark.parametrize("first", [1, STRIDE])
def test_a_branch_that_one_device_of_a_process_does_not_take(first: int) -> None:
    """Whoever waits first: a device of the same process, or one of another."""
    sites = {p: (site(1000, 1, name="step"),) for p in (0, 1)}
    made = Job([[0, 1, STRIDE]], {d: [Step(0, 1000, 1)] for d in (0, 1, STRIDE)}, sites=sites)
    made.devices[0].stops_at = 0
    for device in (first, 1 + STRIDE - first):
        made.move(made.devices[device])
    found = diagnose(made.snapshot())
    assert found.kind is Kind.WAITING
    assert patterns(found) == [Pattern.BRANCH_INSIDE]


def test_a_device_that_waits_for_its_neighbour_which_waits_for_another_process() -> None:
    """Device 1 waits for device 0 of the same process, which is not at fault: process 1 is."""
    sites = {p: (site(1000, 1, name="step"), site(FAR, 1, name="norm")) for p in (0, 1)}
    plan = {0: [Step(1, FAR)], 1: [Step(0, 1000)], STRIDE: [Step(1, FAR)]}
    made = Job([[0, 1], [0, STRIDE]], plan, sites=sites)
    made.devices[STRIDE].stops_at = 0
    for device in (1, 0):
        made.move(made.devices[device])
    found = diagnose(made.snapshot())
    assert (found.kind, found.culprits) == (Kind.WAITING, (1,))
    assert not patterns(found)


@pytest.mark.parametrize(
    ("theirs", "pattern"), [("s32[4]", Pattern.DTYPES), ("f32[2,2]", Pattern.SHAPES)]
)
def test_what_travels_as_bytes_is_compared_by_the_program_s_shapes(
    theirs: str, pattern: Pattern
) -> None:
    for op, call in ((Op.ALL_TO_ALL, Step(0, 1000, op=Op.ALL_TO_ALL)), (Op.PERMUTE, permute(1, 1))):
        name = format.OPS[op]
        other = dataclasses.replace(call, program=FAR)
        if op == Op.PERMUTE:
            other = permute(0, 0, program=FAR)
        sites = {
            0: (site(call.program, op=name, name="step"),),
            1: (site(FAR, op=name, name="step", shape=theirs),),
        }
        found = diagnosed([call], [other], sites=sites)
        assert patterns(found) == [pattern]
        shapes = [row.call.shape for row in found.rows if row.call]
        assert shapes == ["f32[4]", theirs]


def test_one_call_from_two_lines() -> None:
    """What only --strict can see."""
    ours, theirs = (dataclasses.replace(STEP, site=line) for line in (5, 7))
    found = diagnosed([*steps(3), ours], [*steps(3), theirs])
    assert (found.kind, found.groups) == (Kind.MISMATCH, ((0,), (1,)))
    made = job([*steps(3), ours], [*steps(3), dataclasses.replace(STEP, site=0)])
    assert diagnose(made.snapshot()).kind is Kind.NOTHING


def test_a_call_under_an_if_is_no_exchange_of_order() -> None:
    """Of the lines of one call, process 0 is on one where no process has been before."""
    looped = [dataclasses.replace(step, site=7) for step in steps(3)]
    skipped, again = (dataclasses.replace(STEP, site=line) for line in (5, 7))
    found = diagnosed([*looped, skipped], [*looped, again])
    assert patterns(found) == [Pattern.BRANCH, Pattern.OTHER_PLACE]
    both = [*looped, dataclasses.replace(STEP, site=5)]
    found = diagnosed([*both, skipped], [*both, again])
    assert patterns(found)[0] is Pattern.OPPOSITE_ORDER


def test_two_functions_that_one_line_has_made() -> None:
    """As by `jax.jit(jax.shard_map(lambda ...))` in a helper: the lines of their calls differ."""
    train = site(1000, line=12, name="_lambda", first_line="main.py:19")
    norm = site(FAR, line=12, name="_lambda", first_line="main.py:21")
    sites = {0: (train, norm), 1: (train,)}
    found = diagnosed([*steps(3), dataclasses.replace(STEP, program=FAR)], steps(4), sites=sites)
    assert patterns(found)[0] is Pattern.ONE_SIDED
    assert "main.py:21" in headline(found)
    # One function that was compiled again, below the same line.
    again = dataclasses.replace(norm, first_line=train.first_line)
    sites = {0: (train, again), 1: (train,)}
    found = diagnosed([*steps(3), dataclasses.replace(STEP, program=FAR)], steps(4), sites=sites)
    assert patterns(found) == [Pattern.RETRACED]
    assert "first called" not in headline(found)


def test_lines_of_programs_whose_ids_lie_near_each_other_are_distinguished_by_their_count() -> None:
    """A process that has run 5 collectives has executed no program 1000 times."""
    sites = {p: (site(0, line=3, name="old"), site(1000, line=41, name="step")) for p in (0, 1)}
    found = diagnosed(steps(9), steps(5), sites=sites)
    assert found.rows[0].call is not None
    assert [s.line for s in found.rows[0].call.sites] == [41]


def test_a_loop_of_several_calls_is_one_round() -> None:
    loop = [s for one in steps(9) for s in (one, dataclasses.replace(one, channel=2))]
    sites = {p: (site(1000, 1, 41, "step"), site(1000, 2, 44, "step")) for p in (0, 1)}
    first = Step(0, FAR)
    found = diagnosed([first, *loop], [first, *loop[:11]], sites=sites)
    rounds = found.rows[1].latest
    shape = [(r.times, [s.line for c in r.calls for s in c.sites]) for r in rounds]
    assert shape == [(1, []), (1, [41]), (5, [44, 41])]


@settings(deadline=None)
@given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 6))
def test_rounds_are_the_last_calls_in_their_order(programs: list[int], most: int) -> None:
    calls = [Call(format.Entry(1, 5, 0, 0, p, 4, 0, 0, 9, 1, 2, 1, 0, 2), 0) for p in programs]
    found = rounds(calls, most)
    told = [c.entry.elements for r in found for _ in range(r.times) for c in r.calls]
    assert told == programs[len(programs) - len(told) :]
    assert len(told) == len(programs) or sum(len(r.calls) for r in found) >= most
