"""Every command of every listing has a test that runs its form, and is one that can be typed.

``console`` blocks are run as they stand by `test_commands.py`. Other listings show commands for
machines that a test does not have (``node1``, a Slurm cluster), or that take minutes. Those are
parsed by the command's own parser, files and extras that they name have to exist, and `FORMS` names
a test that runs the same form with other hosts, files and sizes.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from lockstep import cli
from lockstep.launch import options, run_command
from page_commands import ROOT, listed_lines

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FORMS = {
    r"lockstep run .*--collectives mpi": "tests/mpi/test_mpi.py::test_the_five_collectives",
    r"mpiexec .*--collectives mpi": "tests/mpi/test_mpi.py::test_under_the_mpis_own_launcher",
    r"lockstep run .*--min-hosts": "tests/hosts/test_restart_on_hosts.py::"
    "test_training_goes_on_from_a_checkpoint_on_two_of_three_hosts",
    r"lockstep run .*--hosts": "tests/hosts/test_run_on_hosts.py::"
    "test_a_job_runs_on_all_slots_of_all_hosts",
    r"lockstep run .*-m pytest": "tests/testing/test_in_job.py::"
    "test_a_suite_under_lockstep_run_gets_one_report",
    r"lockstep run .*-m ": "tests/launch/test_run_command.py::test_a_module_is_run_as_python_does",
    r"lockstep run .*(-c |- <)": "tests/launch/test_run_command.py::"
    "test_code_is_run_from_a_word_and_from_standard_input",
    r"lockstep run -d 2 --max-restarts": "tests/agent/test_slurm.py::"
    "test_the_script_of_the_page_starts_again_after_a_failure",
    r"lockstep run ": "tests/launch/test_run_command.py::"
    "test_every_process_runs_the_program_with_its_arguments",
    r"srun .*lockstep worker": "tests/agent/test_slurm.py::test_a_step_over_two_nodes",
    r"mpirun .*lockstep worker": "tests/agent/test_mpirun.py::test_on_two_hosts",
    r"mpiexec .*lockstep worker": "tests/agent/test_mpirun.py::test_on_two_hosts",
    r"pbsdsh .*worker": "tests/agent/test_worker_command.py::test_torchrun_style_variables",
    r".*RANK=.*worker": "tests/agent/test_worker_command.py::test_torchrun_style_variables",
    r"lockstep doctor .*--hosts": "tests/doctor/test_hosts.py::"
    "test_hosts_are_checked_and_each_pair_measured",
    r"lockstep doctor": "tests/doctor/test_doctor.py::test_the_command_finds_this_machine_fit",
    r"lockstep bench .*--calibrate": "tests/bench/test_calibrate.py::"
    "test_each_measured_case_is_predicted",
    r"lockstep bench": "tests/bench/test_bench.py::test_two_implementations_side_by_side",
    r"lockstep inspect": "tests/inspection/test_commands.py::test_a_plan_for_64_devices_on_4_hosts",
    r"lockstep report .*--trace": "tests/report/test_cli.py::test_the_trace_is_written",
    r"lockstep report .*--json": "tests/report/test_cli.py::test_json",
    r"lockstep report .*--summary": "tests/report/test_cli.py::test_the_summary_is_added_on_demand",
    r"lockstep report .*--pid": "tests/report/test_cli.py::test_a_live_run_is_found_by_a_pid",
    r"lockstep report": "tests/report/test_cli.py::"
    "test_without_arguments_the_one_live_job_is_taken_and_several_are_listed",
    r"lockstep top": "tests/report/test_top.py::test_a_live_job_is_shown_and_top_ends_with_it",
}
"""Forms of commands, the first that fits counts, and the test that runs each."""
SHELL = ("cd", "cp", "export", "kubectl", "openssl", "rsync", "ssh", "(umask", "trap")
OTHERS = ("absl-py", "cloudpickle", "flax", "h5py", "jax", "jupyterlab", "mpich", "netket", "optax",
          "orbax-checkpoint", "portpicker", "scikit-learn")  # fmt: skip
"""Packages that pages tell to install beside Lockstep."""
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S* )*(?:lockstep|srun|mpirun|mpiexec|pbsdsh|blaunch|pip|python3?|make) [^=]"
)
LISTED = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line}")
    for page in PAGES
    if page.name != "CHANGELOG.md"
    for line in listed_lines(page.read_text())
    if COMMAND.match(line) or line in ("lockstep top", "lockstep doctor", "lockstep bench")
]


def names_of_tests(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


def check_lockstep(words: list[str]) -> None:
    """``words`` behind ``lockstep``: a subcommand and options that its parser takes."""
    command, rest = words[0], words[1:]
    if command not in ("run", "worker"):
        cli._parser().parse_args(words)
        return
    parser = options.run_parser() if command == "run" else options.worker_parser()
    ours, program = options.split(rest, parser)
    parser.parse_args(ours)
    assert program, "no program"
    if (ROOT / Path(program[0]).parent).name in ("examples", "benchmarks"):
        run_command.check_program([str(ROOT / program[0])], command)


def check_pip(words: list[str]) -> None:
    assert words.pop(0) == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        name, _, extra = re.split(r"[=<>]=", word)[0].partition("[")
        assert name in (".", project["name"], *OTHERS)
        assert not extra or extra.rstrip("]") in project["optional-dependencies"]


def check_python(words: list[str]) -> None:
    if words[0] in ("-m",):
        return
    text = (ROOT / words[0]).read_text()
    known = re.findall(r'"(-[\w-]+)"', text)
    assert [word for word in words if word.startswith("-") and word not in known] == []


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert words[0] in targets


PARSERS = {
    **next(a.choices for a in cli._parser()._actions if isinstance(a.choices, dict)),
    "run": options.run_parser(),
    "worker": options.worker_parser(),
}
CHECKS = {"lockstep": check_lockstep, "pip": check_pip, "python": check_python,
          "python3": check_python, "make": check_make}  # fmt: skip


@pytest.mark.parametrize("line", LISTED)
def test_a_listed_command_can_be_typed_and_its_form_is_run(line: str) -> None:
    bare = re.sub(r"^(?:NETKET_\w+=\S* )+", "", line)
    form = next((test for pattern, test in FORMS.items() if re.match(pattern, bare)), None)
    words = [word for word in shlex.split(line, comments=True) if word not in ("<", "&", "&&")]
    start = next(i for i, word in enumerate(words) if Path(word).name in CHECKS or "worker" in word)
    name, rest = Path(words[start]).name, words[start + 1 :]
    if "worker" in name:
        name, rest = "lockstep", ["worker", *rest]
    CHECKS[name](rest)
    if name == "lockstep":
        assert form, f"no test runs {line!r}: name one in FORMS"
    if form:
        path, _, test = form.partition("::")
        assert test in names_of_tests(ROOT / path)


def test_commands_in_sentences_have_options_that_exist() -> None:
    wrong = []
    for page in PAGES:
        for found in re.findall(r"`(lockstep [^`]+)`", page.read_text()):
            words = found.split()[1:]
            if words[0] in PARSERS and (unknown := unknown_options(words[0], words[1:])):
                wrong.append(f"{page.relative_to(ROOT)}: `{found}`: {unknown}")
    assert wrong == []


def unknown_options(command: str, words: list[str]) -> list[str]:
    program = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
    known = {name for action in PARSERS[command]._actions for name in action.option_strings}
    names = [word.partition("=")[0] for word in words[:program] if word.startswith("--")]
    return [name for name in names if name not in known]


def test_commands_are_found() -> None:
    assert len(LISTED) > 60
    assert unknown_options("run", ["--hosts", "--bogus"]) == ["--bogus"]


def test_a_command_that_cannot_be_typed_is_found() -> None:
    with pytest.raises(SystemExit):
        check_lockstep(["run", "--no-such-option", "train.py"])
    with pytest.raises(SystemExit):
        check_lockstep(["report", "--summery"])
    with pytest.raises(AssertionError):
        check_pip(["install", "lockstep-jax[everything]"])
    with pytest.raises(AssertionError):
        check_make(["demos"])
