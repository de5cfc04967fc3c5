"""Where our options end and the program begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep import cli
from lockstep.launch import options, usage


@pytest.mark.parametrize(
    ("words", "own", "program"),
    [
        ("a.py", "", "a.py"),
        ("-n 2 a.py -n 3 --bind x", "-n 2", "a.py -n 3 --bind x"),
        ("-n2 --bind=cores a.py", "-n2 --bind=cores", "a.py"),
        ("-n 2 -m pkg.mod -d 4", "-n 2", "-m pkg.mod -d 4"),
        ("-mpkg --x", "", "-m pkg --x"),
        ("-np 2 -c code -d 4", "-np 2", "-c code -d 4"),
        ("-ccode --x", "", "-c code --x"),
        ("-n 2 - --x", "-n 2", "- --x"),
        ("--auto-init --no-prefix a.py", "--auto-init --no-prefix", "a.py"),
        ("-d 4 -- --odd.py -x", "-d 4", "--odd.py -x"),
        ("a.py -- -m b", "", "a.py -- -m b"),
        ("--log-dir logs a.py", "--log-dir logs", "a.py"),
        ("--grace 1 --collective-timeout 0 a.py", "--grace 1 --collective-timeout 0", "a.py"),
        ("-n 2", "-n 2", ""),
        ("--check-replicas a.py 3", "--check-replicas", "a.py 3"),
        ("--check-replicas 7 a.py", "--check-replicas 7", "a.py"),
        ("--check-replicas -n 2 a.py", "--check-replicas -n 2", "a.py"),
        ("--check-replicas=7 3", "--check-replicas=7", "3"),
        ("-n 2 --check-replicas", "-n 2 --check-replicas", ""),
        ("--help", "--help", ""),
    ],
)
def test_split(words: str, own: str, program: str) -> None:
    found = options.split(words.split(), options.run_parser())
    assert found == (own.split(), program.split())


def test_every_option_with_a_value_takes_the_next_word() -> None:
    for parser in (options.run_parser(), options.worker_parser()):
        assert options.split(["--grace", "a.py", "b.py"], parser) == (["--grace", "a.py"], ["b.py"])
        assert options.split(["--strict", "a.py"], parser) == (["--strict"], ["a.py"])


@pytest.mark.parametrize(
    ("words", "every"),
    [("", None), ("--check-replicas", 100), ("--check-replicas 7", 7), ("--check-replicas=0", 0)],
)
def test_a_number_may_be_left_out(words: str, every: int | None) -> None:
    for parser in (options.run_parser(), options.worker_parser()):
        assert parser.parse_args(words.split()).check_replicas == every


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-n 0", "argument -n/-np/--processes: '0' is not a whole number, 1 or more"),
        ("-n two", "'two' is not a whole number, 1 or more"),
        ("-d 0", "argument -d/--devices: '0' is not a whole number, 1 or more"),
        ("--collective-timeout -1", "'-1' is not a number of seconds, 0 or more"),
        ("--collective-timeout nan", "'nan' is not a number of seconds"),
        ("--grace inf", "'inf' is not a number of seconds"),
        ("--check-replicas=-1", "'-1' is not a whole number, 0 or more"),
        ("--collectives nccl", "invalid choice: 'nccl'"),
        ("--bind socket", "invalid choice: 'socket'"),
        ("--verbose", "unrecognized arguments: --verbose"),
        ("--collect gloo", "unrecognized arguments: --collect gloo"),
        ("--devcies 3", "unrecognized arguments: --devcies 3 (did you mean --devices?)"),
    ],
)
def test_errors_name_the_option(words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        options.run_parser().parse_args(words.split())
    assert exit_info.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("a.py -n 2", "lockstep run -n 2 a.py"),
        ("a.py --lr 3 -d 4 --hosts a,b x", "lockstep run -d 4 --hosts a,b a.py --lr 3 x"),
        ("-m pkg -np=2", "lockstep run -np=2 -m pkg"),
        ("-c code -n 2 7", "lockstep run -n 2 -c code 7"),
        ("a.py -n x --devices", ""),
        ("a.py", ""),
    ],
)
def test_options_behind_the_program_are_pointed_out(words: str, meant: str) -> None:
    said = usage.behind_program(words.split())
    assert said.endswith(f": {meant}" if meant else ""), said
    assert bool(said) == bool(meant)


def test_what_stood_before_the_program_stays_there() -> None:
    said = usage.behind_program(["a.py", "-d", "2"], ["-n", "3"])
    assert said.endswith(": lockstep run -n 3 -d 2 a.py"), said


def test_a_program_without_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train.py", "-n", "2", "--lr", "3"]) == 2
    assert "Did you mean: lockstep run -n 2 train.py --lr 3\n" in capsys.readouterr().err
    (tmp_path / "train").touch()
    assert cli.main([str(tmp_path / "train")]) == 2
    assert "is a program and no command of lockstep" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["rnu"])
    assert "invalid choice: 'rnu'" in capsys.readouterr().err
