"""Which tests run under every version: a few of the suite, in groups; and which versions.

A case is a pytest item, or a test function with all of its parameters. The tests themselves know
what a version cannot do (tests/of_this_jax.py); a case that is skipped counts as failed here, so
each list below has only what its version has to do.
"""

from __future__ import annotations

import re

JAX = (
    *("0.8.0", "0.8.3", "0.9.0", "0.9.2", "0.10.0", "0.10.2"),
    *("0.11.0", "0.11.2", "0.12.0.1"),
)
"""The first and the last patch of each minor release of jax."""

PYTHON = ("3.11", "3.12", "3.13", "3.14")

FIRST_PYTHON = {(0, 11): "3.12"}
"""From a minor release of jax on: the oldest Python that it has wheels for."""

NEEDS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "nbclient>=0.10")
"""What the cases need beside Lockstep and jax; the rest comes with Lockstep's wheel."""
EXTRAS = "[data,mpi,notebook,test]"

_FAULT = "tests/faults/test_faults.py::test_all_survivors_raise_and_name_the_culprit[{}, process 1]"
_SOUND = "tests/faults/test_no_false_alarm.py::test_a_correct_program_raises_nothing[{}]"
_UNREAD = "tests/faults/test_unread_results.py::test_{}"
_PROGRAM = "tests/engine/test_programs.py::test_{}"
_NO_FRAMES = (
    "tests/engine/test_without_frames.py"
    "::test_every_collective_is_an_error_that_names_a_way_out[2-2]"
)
_LOOKALIKES = _FAULT.format("swapped look-alikes, 2x2")
_FLOAT16 = "tests/hlo/test_float16_pass.py::test_narrow_types_over_the_engine"
_DATA = "tests/data/test_data.py::test_a_check_passes_on_every_process[2x2-lockstep-{}]"
_POOL = "tests/pool/test_pool.py::test_{}"
_PLUGIN = "tests/testing/test_plugin.py::test_{}"
_NOTEBOOK = "tests/notebook/test_notebook.py::test_a_notebook_from_start_to_stop"
_NO_FLOAT16 = (
    "tests/hlo/test_float16_pass.py::test_where_the_pass_has_no_place_the_error_says_what_to_do"
)

_DIFFER = "tests/faults/test_programs_differ.py::test_{}"
_ONE_PROGRAM = _DIFFER.format("what_differs_is_the_headline[2-constant]")
_BARRIER = "tests/faults/test_at_barriers.py::test_both_lines_are_named[one_side-2-2]"
_LAPACK = _DIFFER.format("what_a_program_is_given_beside_its_operations_is_compared[LAPACK-gloo]")
_COMPILE_ONCE = (
    "tests/programs/test_compile_once.py"
    "::test_a_program_is_compiled_once_and_never_at_the_second_start[{}]"
)
_PLACE = "tests/bootstrap/test_jax_variables.py::test_{}-jax.distributed.initialize()]"
_SPAWNED = (
    "tests/bootstrap/test_children.py"
    "::test_a_child_that_imports_the_main_file_again_cannot_join[spawn]"
)
_LIKE_STOCK = "tests/launch/test_like_stock.py::test_{}"

GROUPS: dict[str, tuple[str, ...]] = {
    "engine": (
        "tests/facts/test_jaxlib_facts.py::test_the_engine_has_every_name_that_jaxlib_resolves",
        _PROGRAM.format("groups_that_look_alike_are_distinguished[2-4]"),
        _PROGRAM.format("groups_that_look_alike_are_distinguished[4-1]"),
        _PROGRAM.format("every_collective_of_every_dtype[2-2]"),
        _PROGRAM.format("the_ways_to_write_a_program"),
        _PROGRAM.format("computations_over_some_of_the_processes"),
        _NO_FRAMES,
        _SOUND.format("2-2-options0"),
        _SOUND.format("4-1-options1"),
        _COMPILE_ONCE.format("lockstep"),
        _PLACE.format("the_worker_finds_them[without port"),
        _PLACE.format("import_lockstep_finds_them[jaxjob"),
        _SPAWNED,
    ),
    "faults": (
        _FAULT.format("kill, 3x2"),
        _FAULT.format("shorter loop, 2x1"),
        _FAULT.format("shape, 3x1"),
        _FAULT.format("swapped, 2x1"),
        _FAULT.format("permutation, 3x1"),
        _FAULT.format("crossing cliques, 2x2"),
        _LOOKALIKES,
        _ONE_PROGRAM,
        _BARRIER,
        _UNREAD.format("the_job_fails_and_names_the_line"),
        _UNREAD.format("a_program_that_has_caught_the_error_ends_as_it_likes"),
    ),
    "--strict": (
        "tests/faults/test_faults.py::test_strict_compares_the_lines_that_make_a_call[2]",
        _SOUND.format("2-2-options4"),
    ),
    "float16": (_FLOAT16, _NO_FLOAT16),
    "linalg": (
        "tests/linalg/test_processes.py::test_two_processes[solve-lockstep-1]",
        "tests/linalg/test_processes.py::test_two_processes[solve-lockstep-2]",
        "tests/linalg/test_positive.py::test_inverse_by_many_supersteps",
        "tests/facts/test_ffi_facts.py::test_a_kernel_is_registered_and_its_words_reach_the_program",
    ),
    "report, top": (
        "tests/worker/test_agents_of_a_job.py::test_the_records_of_a_failed_job_are_kept_for_the_report",
        "tests/report/test_top.py::test_a_live_job_is_shown_and_top_ends_with_it",
    ),
    "inspect, data": (
        "tests/inspection/test_truth.py::test_reports_equal_what_ran",
        _DATA.format("data_checks-check_indexed"),
        _DATA.format("data_checks-check_streams"),
        _DATA.format("data_checks-check_equalize"),
        _DATA.format("data_checks-check_state"),
        _DATA.format("transfer_checks-check_there_and_back"),
        _DATA.format("transfer_checks-check_errors_of_jax_name_gather"),
    ),
    "pool, pytest, notebook": (
        _POOL.format("results_come_back_by_rank_and_output_with_the_rank"),
        _POOL.format("a_process_that_returns_early_is_named_with_the_line"),
        _POOL.format("a_death_is_told_by_signal_and_new_processes_start"),
        _PLUGIN.format("every_test_has_one_verdict"),
        _PLUGIN.format("equal_failures_are_shown_once_with_their_values_and_output"),
        _NOTEBOOK,
    ),
    "gloo": (
        "tests/launch/test_jax.py::test_every_way_to_begin[gloo-jax]",
        "tests/linalg/test_processes.py::test_two_processes[solve-gloo-1]",
        _COMPILE_ONCE.format("gloo"),
        _LAPACK,
        _LIKE_STOCK.format("settings_signals_and_barriers_are_those_of_stock_jax"),
        _LIKE_STOCK.format(
            "a_program_says_what_it_says_on_stock_jax[barriers that fail-1-lockstep]"
        ),
        "tests/programs/test_gloo_faults.py"
        "::test_a_large_one_is_told_once_over_gloo_where_it_can_be_wrong",
    ),
    "MPI": (
        "tests/mpi/test_mpi.py::test_the_five_collectives[2]",
        _DIFFER.format("programs_are_compared_over_mpi"),
    ),
}

_CORNERS = {
    GROUPS["engine"][0],
    _PROGRAM.format("groups_that_look_alike_are_distinguished[2-4]"),
    _NO_FRAMES,
    _SOUND.format("2-2-options0"),
    _FAULT.format("kill, 3x2"),
    _FAULT.format("shape, 3x1"),
    _LOOKALIKES,
    _UNREAD.format("the_job_fails_and_names_the_line"),
    _UNREAD.format("a_program_that_has_caught_the_error_ends_as_it_likes"),
    GROUPS["--strict"][0],
    *GROUPS["float16"],
    GROUPS["linalg"][1],
    *GROUPS["report, top"],
    *GROUPS["inspect, data"],
    *GROUPS["pool, pytest, notebook"],
    GROUPS["gloo"][0],
    GROUPS["MPI"][0],
    _COMPILE_ONCE.format("lockstep"),
    _ONE_PROGRAM,
    _LIKE_STOCK.format("a_program_says_what_it_says_on_stock_jax[barriers that fail-1-lockstep]"),
}
"""What a new jax breaks first, or an old one cannot do: the lane that runs with every change."""


_CRASH_XLA = {
    "0.11.2": (_PROGRAM.format("every_collective_of_every_dtype[2-2]"),),
}
"""What ends the compiler of this jaxlib with SIGSEGV, without Lockstep too.

See docs/reference/versions.md."""


_NUMBERED = (_LOOKALIKES, _ONE_PROGRAM, _BARRIER, _LAPACK)
"""What needs the numbers of executions, which jaxlib has from 0.9 on."""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def cases(jax: str, corners: bool) -> dict[str, tuple[str, ...]]:
    """The cases of each group that have to pass with this jax."""
    without = set(_CRASH_XLA.get(jax, ()))
    if numbers(jax) < (0, 9):
        without.update(_NUMBERED)
    if numbers(jax) < (0, 10, 2):
        without.add(_FLOAT16)

    def runs(case: str) -> bool:
        return case not in without and (not corners or case in _CORNERS)

    return {group: tuple(filter(runs, listed)) for group, listed in GROUPS.items()}


def supports(python: str, jax: str) -> bool:
    return all(
        numbers(jax)[:2] < minor or numbers(python) >= numbers(first)
        for minor, first in FIRST_PYTHON.items()
    )


def choose(pythons: list[str], newest: str, corners: bool) -> list[tuple[str, str]]:
    """(Python, jax): every jax at least once, and the oldest and newest jax of each Python.

    ``pythons`` are those that are here, in order; ``newest`` is the newest jax there is.
    """
    versions = sorted({*JAX, newest}, key=numbers)
    on = {python: [jax for jax in versions if supports(python, jax)] for python in pythons}
    if corners:
        first, last = pythons[0], pythons[-1]
        return [(first, on[first][0]), (last, on[last][-1])]
    chosen = {(python, jax) for python in pythons for jax in (on[python][0], on[python][-1])}
    for index, jax in enumerate(versions):
        places = [python for python in pythons if jax in on[python]]
        # The oldest Python takes what it can; what it cannot is spread over the others.
        if places:
            chosen.add((places[0] if places == pythons else places[index % len(places)], jax))
    return sorted(chosen, key=lambda cell: (numbers(cell[0]), numbers(cell[1])))
