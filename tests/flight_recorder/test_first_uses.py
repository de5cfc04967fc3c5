"""Where a report says that a program was first used, when its call has no line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flight_recorder.jobs import FAR, diagnosed, job, steps
from flight_recorder.simulate import Step, site
from lockstep.flight_recorder.diagnose import Diagnosis, diagnose
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.phrases import place_in_program
from lockstep.flight_recorder.run_records import Site
from lockstep.flight_recorder.text_report import short


def used(line: int, name: str = "step", program: int = 1000, **more) -> Site:
    """A collective that has no line, of a program that was first used at this one."""
    first = {"used_file": "/home/u/main.py" if line else "", "used_line": line}
    return site(program, name=name, **({"file": "", "line": 0} | first | more))


def test_without_a_line_it_is_reported_where_the_program_was_first_used() -> None:
    assert place_in_program([used(3)]) == "step (first used at main.py:3)"
    assert place_in_program([used(3)], full=True) == "step (first used at /home/u/main.py:3)"
    assert place_in_program([used(0)]) == "step"
    several = [used(n) for n in (3, 5, 3)]
    assert place_in_program(several) == "step (first used at main.py:3 or main.py:5)"


@given(st.permutations([site(1, line=41, name="a"), used(0, "b"), used(7, "c")]))
def test_a_first_use_is_reported_of_the_function_that_it_is_of(sites: list[Site]) -> None:
    assert place_in_program(sites) == "train.py:41 in a or b or c (first used at main.py:7)"


def test_a_fault_in_what_has_no_line_names_the_first_use_on_both_sides() -> None:
    sites = {p: (used(3), used(9, "other", FAR)) for p in range(2)}
    text = short(diagnosed(steps(5), [*steps(3), Step(0, FAR)], sites=sites))
    assert "called all-reduce (sum) of 1024 x f32, step (first used at main.py:3)" in text
    assert "called all-reduce (sum) of 4 x f32, other (first used at main.py:9): as" in text
    assert "before: 3 x step (first used at main.py:3)" in text


def test_both_lines_are_reported_where_either_may_have_been_the_first_use() -> None:
    sites = {p: (used(3), used(7)) for p in range(2)}
    text = headline(diagnosed(steps(5), steps(3), sites=sites))
    assert text.endswith("x f32, step (first used at main.py:3 or main.py:7)")


def test_another_process_does_not_show_where_this_one_used_a_program_first() -> None:
    run = job(steps(5), steps(3), sites={0: (used(3),), 1: ()}).snapshot()
    ours, theirs = diagnose(run).rows
    assert ours.call is not None
    assert theirs.call is not None
    assert (ours.call.sites, theirs.call.sites) == ((used(3),), (used(0),))


def test_lines_are_awaited_from_processes_that_have_not_written_them() -> None:
    def awaited(*own: Site) -> bool:
        made = job([*steps(5)], steps(3), sites={0: own, 1: (used(3), site(FAR, line=9))})
        return diagnose(made.snapshot()).rows[0].awaits_lines

    assert awaited()
    assert not awaited(used(0))
    assert not awaited(used(5))
    made = job(steps(5), steps(3), sites={0: (), 1: (site(1000, line=41),)})
    assert [row.awaits_lines for row in diagnose(made.snapshot()).rows] == [False, False]


@given(st.integers(0, 9), st.integers(0, 9))
def test_where_programs_were_first_used_changes_no_finding(mine: int, theirs: int) -> None:
    def found(mine: int, theirs: int) -> Diagnosis:
        sites = {0: (used(mine, "<lambda>"),), 1: (used(theirs, "<lambda>", FAR),)}
        wider = [*steps(3), Step(0, FAR, elements=1000)]
        return diagnosed(steps(5), wider, sites=sites)

    with_lines, without = found(mine, theirs), found(0, 0)
    assert (with_lines.kind, with_lines.groups) == (without.kind, without.groups)
    assert with_lines.causes == without.causes


def test_a_program_without_lines_yet_is_not_taken_for_one_with_a_number_before_its_own() -> None:
    """Of jax 0.9.0: `total` and `along_x` have first numbers that are 13 688 444 apart."""

    def lines(ahead: int) -> list[tuple[int, ...]]:
        made = job(steps(5), [*steps(3), Step(0, 1000 + ahead)], sites={1: (site(1000, line=41),)})
        rows = diagnose(made.snapshot()).rows
        return [tuple(each.line for each in row.call.sites) for row in rows if row.call]

    assert lines(13_688_444) == [(41,), ()]
    assert lines(60_000) == [(41,), (41,)]  # in a conditional that was false until now
