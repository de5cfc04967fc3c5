"""Every command of every listing has a test that runs its form, and is one that can be typed.

``console`` blocks are run as they stand by `test_commands.py`. Other listings show commands for
machines that a test does not have (``node1``, a Slurm cluster), or that take minutes. Those are
parsed by the command's own parser, files and extras that they name have to exist, and `FORMS` names
a test that runs the same form with other hosts, files and sizes. Commands in sentences that can be
typed as they stand need a test too. `NOT_RUN` has the others, each with the reason.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from docs.test_docs import parsers
from docs.test_security import names_in
from lockstep import cli
from lockstep.launch import before_start, options
from page_commands import ROOT, in_sentences, listed_lines

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FORMS = {
    r"lockstep run .*--spares": "tests/hosts/test_restart_on_hosts.py::"
    "test_a_spare_goes_on_from_the_checkpoint_with_the_same_numbers",
    r"lockstep run .*--grow": "tests/hosts/test_restart_on_hosts.py::"
    "test_a_host_that_was_cut_off_returns_and_the_job_grows",
    r"lockstep run .*--min-hosts": "tests/hosts/test_restart_on_hosts.py::"
    "test_training_goes_on_from_a_checkpoint_on_two_of_three_hosts",
    r"lockstep run .*--hosts": "tests/hosts/test_run_on_hosts.py::"
    "test_a_job_runs_on_all_slots_of_all_hosts",
    r"lockstep run .*-m pytest": "tests/testing/test_in_job.py::"
    "test_a_suite_under_lockstep_run_gets_one_report",
    r"lockstep run .*-m ": "tests/launch/test_run_command.py::test_a_module_is_run_as_python_does",
    r"lockstep run .*(-c |- <)": "tests/launch/test_run_command.py::"
    "test_code_is_run_from_a_word_and_from_standard_input",
    r"lockstep run -d 2 --max-restarts": "tests/worker/test_slurm.py::"
    "test_the_script_of_the_page_starts_again_after_a_failure",
    r"lockstep run ": "tests/launch/test_run_command.py::"
    "test_every_process_runs_the_program_with_its_arguments",
    r"(export LOCKSTEP_COORDINATOR=.*|lockstep worker --nnodes 2:4)": "tests/worker/"
    "test_joining.py::test_a_host_that_comes_gets_the_number_of_a_lost_one",
    r"(export MASTER_ADDR=|lockstep worker .*--nnodes)": "tests/worker/"
    "test_nodes_that_come_and_go.py::test_it_starts_with_few_goes_on_with_fewer_and_takes_in_who_comes",
    r"srun --no-kill ": "tests/worker/test_slurm.py::test_a_step_goes_on_without_a_lost_task",
    r"srun .*lockstep worker": "tests/worker/test_slurm.py::test_a_step_over_two_nodes",
    r"mpirun .*lockstep worker": "tests/worker/test_mpirun.py::test_on_two_hosts",
    r"mpiexec .*lockstep worker": "tests/worker/test_mpirun.py::test_on_two_hosts",
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
    r"python scripts/lost_time_model\.py": "tests/docs/test_lost_time_model.py::"
    "test_the_page_has_the_tables_of_the_model",
    r"python scripts/gpu\.py": "tests/nccl/test_gpu_script.py::test_its_programs_on_cpus",
    r"lockstep top": "tests/report/test_top.py::test_a_live_job_is_shown_and_top_ends_with_it",
    r"(blaunch|jsrun) ": "tests/docs/test_batch_launchers.py::test_lsf",
    r"(cp \$PBS|pbsdsh )": "tests/docs/test_batch_launchers.py::test_pbs",
    r"(git clone|python scripts/jax_multi)": "tests/docs/test_jax_multiprocess_page.py::"
    "test_a_line_runs_the_tests",
    r"(pip install|python3 -m venv) ": "tests/docs/test_pip_lines.py::test_pip_resolves_a_line",
    r"(python benchmarks/|openssl speed)": "tests/docs/test_measurements.py::"
    "test_a_measurement_prints_its_rows",
    r"(ssh-keygen|ssh-copy-id|ssh -o|rsync|cd ~/work)": "tests/docs/test_several_hosts.py::"
    "test_a_key_lets_ssh_in_and_rsync_copies_the_program",
    r"(ssh hostb|.*RANK=.*worker|scp |openssl rand -hex 32$|\(umask .*~/\.lockstep)": "tests/docs/"
    "test_without_a_launcher.py::test_the_key_its_copy_and_a_process_on_each_host",
    r"(export LOCKSTEP_KEY|trap |\(umask )": "tests/worker/test_slurm.py::"
    "test_the_script_of_the_page_starts_again_after_a_failure",
    r"(openssl .*\| )?kubectl ": "tests/docs/test_kubectl.py::"
    "test_the_key_the_objects_the_logs_and_the_end",
}
"""Forms of commands, the first that fits counts, and the test that runs each."""
NOT_RUN = {
    r"(PIP_CONSTRAINT=FILE )?make ": "runs in the checkout itself: CI types check, full and demo",
    r"ssh node2 /home/alice/venv": "an example of what a check advises: it installs another jax",
    r"sudo ": "changes the machine",
    r"python -m pytest$": "starts the suite of the reader",
    r"(mpirun -n 4 |srun )?python train\.py": "shows how a program starts without Lockstep",
}
"""Commands that no test runs, and why."""
OTHERS = ("absl-py", "cloudpickle", "diffrax", "equinox", "flax", "grain", "h5py", "jax", "jaxlib",
          "jupyterlab", "keras", "lineax", "mpich", "netket", "numpyro", "nvidia-ml-py", "optax",
          "optimistix", "orbax-checkpoint", "portpicker", "scikit-learn")  # fmt: skip
"""Packages that pages tell to install beside Lockstep."""
PROGRAMS = (
    r"lockstep|srun|mpirun|mpiexec|pbsdsh|blaunch|jsrun|pip|python3?|git|kubectl|openssl|rsync|scp"
    r"|ssh|ssh-[\w-]+|sudo"
)
IN_SENTENCE = re.compile(rf"(?:[A-Z_]+=\S* )*(?:{PROGRAMS}) [^=\s]")
COMMAND = re.compile(rf"(?:[A-Z_]+=\S* )*(?:{PROGRAMS}|make|cd|cp|export|trap|\(umask) [^=\s]")
ALONE = ("lockstep top", "lockstep doctor", "lockstep bench")


def listed(page: str) -> list[str]:
    """The commands in the listings of ``page`` that are not run as they stand."""
    lines = [line.removeprefix("fix: ") for line in listed_lines(page)]
    return [line for line in lines if COMMAND.match(line) or line in ALONE]


def in_text(page: str) -> list[str]:
    """The commands in its sentences that can be typed; a launcher's has to name its program."""
    return [
        code
        for code in in_sentences(page)
        if IN_SENTENCE.match(code) and "..." not in code and code != "pip install"
        if ".py" in code or not re.match(r".*(lockstep|srun|mpirun|mpiexec) ", code)
    ]


LISTED = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line}")
    for page in PAGES
    if page.name != "CHANGELOG.md"
    for line in dict.fromkeys([*listed(page.read_text()), *in_text(page.read_text())])
]


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
        before_start.check_program([str(ROOT / program[0])], command)


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


PARSERS = parsers()
CHECKS = {"lockstep": check_lockstep, "pip": check_pip, "python": check_python,
          "python3": check_python, "make": check_make}  # fmt: skip


def what_runs(line: str) -> str | None:
    """The test that runs the form of ``line``, or the reason why none does."""
    bare = re.sub(r"^(?:NETKET_\w+=\S* )+", "", line)
    known = {**FORMS, **NOT_RUN}
    return next((known[pattern] for pattern in known if re.match(pattern, bare)), None)


@pytest.mark.parametrize("line", LISTED)
def test_a_listed_command_can_be_typed_and_its_form_is_run(line: str) -> None:
    found = what_runs(line)
    assert found, f"no test runs {line!r}: name one in FORMS"
    if found in FORMS.values():
        path, _, test = found.partition("::")
        assert test in names_in(path)
    if found in FORMS.values() or line.startswith("make "):
        check(line)


def check(line: str) -> None:
    """That the program which a line starts takes the words behind it, where we know its options."""
    words = [word for word in shlex.split(line, comments=True) if word not in ("<", "&", "&&")]
    names = [Path(word).name for word in words]
    if "worker" in names:  # also behind what a shell makes of $(command -v lockstep)
        check_lockstep(words[names.index("worker") :])
    elif start := next((i + 1 for i, name in enumerate(names) if name in CHECKS), None):
        CHECKS[names[start - 1]](words[start:])


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
    found = {what_runs(str(case.values[0])) for case in LISTED}
    assert {*FORMS.values(), *NOT_RUN.values()} - found == set(), "of no page any more"
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
    assert what_runs("rsync -a x node2:") is not None
    assert what_runs("git push") is None
    assert in_text("`git push`, `git`, `srun --exact` or `srun x.py`") == ["git push", "srun x.py"]
    assert listed("    fix: rsync -a x node2:\n") == ["rsync -a x node2:"]
