"""Which program a launch is of, and what the records of two processes show."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from lockstep import _jax_compat
from lockstep.flight_recorder import diagnose, diagnosis_headline, run_records
from lockstep.flight_recorder.format import Op, ProcessState, State
from lockstep.programs import compilations, jitted, launches
from lockstep.programs.compilations import Program
from lockstep.programs.launches import Record, sites_of
from programs.launch_records import (
    EVERYWHERE,
    LOCAL,
    OWNER,
    Executable,
    Jitted,
    Result,
    entries,
    fast,
    function,
    in_thread,
    program,
    record,
    slow,
)
from programs.launch_records import own as own
from programs.launch_records import programs as programs


def test_launches_by_both_paths_are_in_order(own: Record) -> None:
    sites: list[run_records.Site] = []
    own.new_sites = sites.extend
    step, other = function(own, b"step"), function(own, b"other")
    slow(own, b"step")
    fast(own, step)
    fast(own, other)
    found = own.read()
    assert [e.op for e in found.rings[0].entries] == [Op.PROGRAM] * 3
    first, second, third = (e.run_id for e in found.rings[0].entries)
    assert first == second != third
    assert [s.module for s in sites] == ["jit_step", "jit_other"]
    assert {s.program for s in sites} == {first, third}
    assert found.cliques == ((found.rings[0].entries[0].clique, (0, 2048)),)


def test_two_modules_that_became_one_executable_are_both_known(programs: Any, own: Record) -> None:
    """As of a loop whose carry is an array of one device at first, and of all later."""
    slow(own, b"step")
    first = function(own, b"step")
    programs[b"step"].append(program("step", "55"))
    slow(own, b"step")
    fast(own, first, size=0)
    fast(own, function(own, b"step"), size=0)
    first_id, second_id, third_id, fourth_id = (run_id for _, run_id, _ in entries(own))
    assert 0 != first_id == third_id != second_id == fourth_id != 0


def test_a_function_of_one_executable_is_not_told_by_its_arguments(
    programs: Any, own: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes a microsecond for each argument."""
    step = function(own, b"step")
    programs[b"step"].append(program("step", "55"))
    own.learn(step.__wrapped__, Executable(b"step"), (np.ones(1),), {})
    monkeypatch.setattr(jitted, "_signature", None)
    fast(own, step, size=0)
    assert [run_id != 0 for _, run_id, _ in entries(own)] == [True]


def test_programs_of_this_process_or_without_collectives_are_left_out(own: Record) -> None:
    slow(own, b"not of several processes")
    slow(own, b"quiet")
    fast(own, function(own, b"quiet"))
    fast(own, Jitted(lambda: None))
    assert entries(own) == []


def test_whether_a_program_has_collectives_is_known_once_it_is_launched(own: Record) -> None:
    assert own.has_collectives(b"step") is None
    slow(own, b"step")
    slow(own, b"quiet")
    assert [own.has_collectives(each) for each in (b"step", b"quiet", b"?")] == [True, False, None]


def test_a_function_that_has_local_programs_too_is_told_by_its_results(own: Record) -> None:
    both = function(own, b"step", b"local")
    fast(own, both, ({"loss": LOCAL}, LOCAL))
    assert entries(own) == []
    fast(own, both, ({"loss": EVERYWHERE}, LOCAL))
    assert len(entries(own)) == 1


def test_of_several_programs_the_arguments_choose(own: Record) -> None:
    both = function(own, b"step", b"wide")
    fast(own, both, size=0)
    fast(own, both, size=1)
    first, second = (run for _, run, _ in entries(own))
    assert 0 != first != second != 0
    own.learn(both.__wrapped__, Executable(b"other"), (np.ones(1),), {})  # a static argument
    fast(own, both, size=1)
    assert entries(own)[-1][1] == 0


class Unbuilt:
    """A static argument that has no shape yet, and says so by an error of its own."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("not built yet")


@pytest.mark.parametrize(
    "static", [np.float64, SimpleNamespace(shape=(3,)), Unbuilt(), "sum", object()]
)
def test_a_static_argument_may_have_a_shape(own: Record, static: Any) -> None:
    both = function(own, b"step", b"wide")
    own.learn(both.__wrapped__, Executable(b"step"), (np.ones(3), static), {})
    own.fast(both, (np.ones(3), static), {}, EVERYWHERE)
    [(_, run, _)] = entries(own)
    assert run != 0


def by_mode(own: Record, *executables: bytes) -> Jitted:
    """A function with a program for each value of its static argument."""
    both = Jitted(lambda: None)
    for mode, each in enumerate(executables):
        own.learn(both.__wrapped__, Executable(each), (np.ones(3), mode), {}, ((1,), ("mode",)))
    return both


def test_of_several_programs_a_static_argument_chooses(programs: Any, own: Record) -> None:
    both = by_mode(own, b"step", b"other", b"quiet")
    for mode in (1, 0, 2, 1.0, 3):  # 2 has no collectives, and the last two are not known
        own.fast(both, (np.ones(3), mode), {}, EVERYWHERE)
    names = [own.programs()[run].name if run else "?" for _, run, _ in entries(own)]
    assert names == ["jit_other", "jit_step", "?", "?"]
    own.learn(both.__wrapped__, Executable(b"wide"), (np.ones(3),), {"mode": 7}, ((1,), ("mode",)))
    own.fast(both, (np.ones(3),), {"mode": 7}, EVERYWHERE)
    assert entries(own)[-1][1] not in (0, entries(own)[1][1])


def test_of_several_programs_a_setting_of_jax_chooses(programs: Any, own: Record) -> None:
    both = Jitted(lambda: None)
    for each, precision in ((b"step", "highest"), (b"other", "default"), (b"wide", "default")):
        with jax.default_matmul_precision(precision):
            own.learn(both.__wrapped__, Executable(each), (), {})
    for precision in ("highest", "default"):
        with jax.default_matmul_precision(precision):
            own.fast(both, (), {}, EVERYWHERE)
    names = [own.programs()[run].name if run else "?" for _, run, _ in entries(own)]
    assert names == ["jit_step", "?"]


def test_of_what_stays_in_a_process_the_main_threads_launches_are_recorded(
    own: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may launch such programs in another order on each process."""
    text = " %a = f32[] all-reduce(%x), replica_groups={{0,1},{2,3}}"
    monkeypatch.setattr(_jax_compat, "text_of_executable", lambda _: text)
    step = function(own, b"step")
    in_thread(fast, own, step)
    assert entries(own) == []
    fast(own, step)
    assert [number for number, _, _ in entries(own)] == [0]


def test_a_program_has_the_thread_that_launched_it_first(programs: Any, own: Record) -> None:
    in_thread(function, own, b"step", name="prefetch")
    fast(own, function(own, b"step"))
    [site] = sites_of(own.programs())
    assert site.thread == "prefetch"


def test_a_function_that_has_died_is_forgotten(own: Record) -> None:
    for _ in range(50):
        fast(own, function(own, b"step"))
    assert len(own._functions._by_function) <= 1
    assert len(own._functions.by_jitted) <= 1


def test_a_function_on_two_sets_of_devices_is_counted_where_its_results_are(
    programs: Any, own: Record
) -> None:
    few = dataclasses.replace(program("step", "55"), devices=(0, 2048))
    programs[b"few"] = [few]
    both = function(own, b"step", b"few")
    fast(own, both, Result(0, 2048))
    fast(own, both, EVERYWHERE)
    found = own.read().rings[0].entries
    assert [e.sequence for e in found] == [0, 0]
    assert found[0].clique != found[1].clique


def test_calls_of_a_program_compiled_ahead_of_time_are_recorded(own: Record) -> None:
    step, other = Jitted(None), Jitted(None)
    for called, executable in ((step, b"step"), (other, b"other"), (step, b"step")):
        own.learn(called, Executable(executable), (), {})
    for called in (step, other, step):
        fast(own, called)
    first, second, third = (run_id for _, run_id, _ in entries(own))
    assert 0 != first == third != second != 0


def test_an_executable_has_one_identity_wherever_its_lines_are() -> None:
    def text(line: int, times: str = "2") -> str:
        return (
            "HloModule jit_step, entry_computation_layout={()->f32[]}\n"
            f"  %m = f32[] multiply(%x, {times}), metadata={{source_line={line}}}\n"
        )

    def identity(fingerprint: bytes, of: str, devices: tuple[int, ...] = tuple(OWNER)) -> str:
        return compilations.identity(Executable(fingerprint), of, devices)

    assert identity(b"a", text(7)) == identity(b"b", text(9))
    assert identity(b"a", text(7)) != identity(b"a", text(7, "3"))
    assert identity(b"a", text(7)) != identity(b"a", text(7), (0, 2048))
    large = text(7, "constant({...})")
    assert identity(b"a", large) != identity(b"b", large)
    assert identity(b"a", "") != identity(b"b", "")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--xla_dump_to=/p0 --xla_gpu_dump_autotune_results_to=/p0/a", ""),
        ("--xla_gpu_cuda_data_dir=/usr/local/cuda-12 --xla_gpu_kernel_cache_file=/p0/k", ""),
        ("--xla_gpu_per_fusion_autotune_cache_dir=/p0 --xla_detailed_logging=true", ""),
        ("--xla_b=1 --xla_a=thread", "--xla_a=thread --xla_b=1"),
        ("--xla_disable_hlo_passes=logistic-expander",) * 2,
    ],
)
def test_flags_that_change_what_is_computed(
    monkeypatch: pytest.MonkeyPatch, given: str, kept: str
) -> None:
    """Those are told by their names: a path, or a list of passes, may have any word."""
    monkeypatch.setenv("XLA_FLAGS", given)
    assert compilations.flags.__wrapped__() == kept


def test_the_second_call_of_a_function_may_be_the_one_that_does_not_return(own: Record) -> None:
    step = function(own, b"step")
    slow(own, b"step")  # JAX makes its fast path here
    own.look([step], in_flight=False)
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE), (1, State.ENTERED)]
    own.look([len], in_flight=False)
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE)]


def judged(*records: Record) -> diagnose.Diagnosis:
    return diagnose.diagnose(
        run_records.Run(
            tuple(
                run_records.Process(index, one.read(), launches.sites_of(one.programs()))
                for index, one in enumerate(records)
            )
        )
    )


def test_a_process_that_ended_while_another_was_inside_of_a_program_is_named(
    programs: Any,
) -> None:
    both = record(0), record(1)
    for one in both:
        fast(one, function(one, b"step"))
    both[0].failed()  # in a loop of its own inside of the program
    both[1].leave(ProcessState.ENDED)
    text = diagnosis_headline.headline(judged(*both))
    assert text.startswith("process 1 ("), text
    assert "ended after 1 program; collectives raised on process 0" in text


def test_records_of_two_processes_are_judged_as_collectives_are(programs: Any) -> None:
    both = record(0), record(1)
    steps = [function(one, b"step") for one in both]
    for one, step in zip(both, steps, strict=True):
        fast(one, step)
        fast(one, step)
    assert judged(*both).kind is diagnose.Kind.NOTHING
    both[0].look([steps[0]], in_flight=False)
    both[1].leave(1)
    late = judged(*both)
    assert (late.kind, late.culprits, late.unit) == (diagnose.Kind.ENDED, (1,), "program")


def test_other_programs_at_one_place_are_a_mismatch(programs: Any) -> None:
    both = record(0), record(1)
    fast(both[0], function(both[0], b"step"))
    fast(both[1], function(both[1], b"other"))
    found = judged(*both)
    assert (found.kind, found.groups) == (diagnose.Kind.ONE_SIDED, ((0,), (1,)))


def test_a_program_in_the_place_of_a_freed_one_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Compiled:
        """What JAX calls for a program that was compiled ahead of time."""

    def address(thing: object) -> int:
        return 1 if isinstance(thing, Compiled) else id(thing)

    monkeypatch.setattr(jitted, "id", address, raising=False)
    functions, one = jitted.Functions(), Compiled()
    program = Program("jit_step", "train.py:3", "ab", (0, 1), "", b"")
    launched = jitted.Launched(program, 7, 5, (0, 1), frozenset({0, 1}), b"", b"", b"", True)
    functions.learn(one, launched, (), {})
    assert functions.launched_by(one, (), {}, ()) == (launched, True)
    del one
    other = Compiled()
    functions.learn(other, None, (), {})  # it has no collectives
    assert functions.launched_by(other, (), {}, LOCAL) == (None, False)
