"""The options of the magics, and the errors for wrong ones."""

from __future__ import annotations

import pytest

from lockstep.notebook import options
from lockstep.notebook.errors import NotebookError


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", (1, [], ())),
        ("-n 2 -d 4", (2, ["-d", "4"], ())),
        ("-n2 --collectives gloo", (2, ["--collectives", "gloo"], ())),
        ("--processes=3 --strict", (3, ["--strict"], ())),
        ("--processes 3 -d4", (3, ["-d4"], ())),
        ("--hosts a.org:2,b.org", (3, ["--hosts", "a.org:2,b.org"], ("a", "a", "b"))),
        ("-n 2 --hosts=a:2,b", (2, ["--hosts=a:2,b"], ("a", "a"))),
    ],
)
def test_the_options_of_start(line: str, found: tuple[int, list[str], tuple[str, ...]]) -> None:
    assert options.start(line) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "-n 0",
            "start: argument -n/-np/--processes: '0' is not a whole number, 1 or more",
        ),
        ("--collectives nccl", "invalid choice: 'nccl'"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--devcies 3", "unrecognized arguments: --devcies (did you mean --devices?)"),
        ("-n 2 --colectives=gloo", "--colectives=gloo (did you mean --collectives?)"),
        ("-n 2 train.py", "what is 'train.py'? It takes options only"),
        ("--hosts a,,b", "%lockstep start: --hosts a,,b: a host's name is missing"),
        ("--hosts=a -n 2", "%lockstep start: -n 2: the hosts have 1 slots (a:1)"),
        ("--hostfile f", "%lockstep start: --hostfile f: No such file or directory"),
        ("--hosts a --min-hosts 1", "%lockstep start --hosts names the hosts that are left"),
        ("--hosts a,b --spares 1", "--spares: here, %lockstep start --hosts names the hosts"),
        ("--ssh 'ssh -v'", "%lockstep start: --ssh is for --hosts or --hostfile"),
        ("--max-restarts 3", "%lockstep restart starts the processes again"),
        ("--platform 'cpu", "No closing quotation"),
    ],
)
def test_wrong_options_of_start(line: str, words: str) -> None:
    with pytest.raises(NotebookError) as error:
        options.start(line)
    assert words in str(error.value)


def test_commands() -> None:
    assert options.command("start -n 2") == ("start", "-n 2")
    for line in ("", "run"):
        with pytest.raises(NotebookError, match="Commands: start, status, restart, stop, push"):
            options.command(line)


@pytest.mark.parametrize(
    ("line", "found"),
    [("", [0, 1, 2, 3]), ("--on 0", [0]), ("--on 0,2-3", [0, 2, 3]), ("--on=1", [1])],
)
def test_the_processes_of_a_cell(line: str, found: list[int]) -> None:
    assert options.cell(line, 4) == found


@pytest.mark.parametrize("text", ["4", "x", "", "1-", "2-1", "-1"])
def test_wrong_processes(text: str) -> None:
    with pytest.raises(NotebookError, match="there are 4, from 0 to 3"):
        options.cell(f"--on={text}", 4)


def test_names() -> None:
    assert options.names("x y --on 1", "%lockstep pull") == (["x", "y"], "1")
    with pytest.raises(NotebookError, match=r"'a\.b' is not the name of a variable"):
        options.names("a.b", "%lockstep push")
    with pytest.raises(NotebookError, match="required: names"):
        options.names("", "%lockstep push")
