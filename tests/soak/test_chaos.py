"""The chaos schedule itself: what it draws, and how its oracle judges. One short real run."""

from __future__ import annotations

import collections
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from lanes import full, needs
from processes import captured
from soak import faults, known, oracle
from soak.chaos import RESULTS
from soak.oracle import Struck, Table, Verdict
from ssh_hosts import possible

AGAIN = "lockstep: attempt 0 has failed; starting again (99 restarts left)\n"
STARTS = "lockstep: attempt 1 starts on 4 of 4 hosts, 1.5 s after the failure: ended after 0.5 s\n"
KILLED = "lockstep: process 2 of 4 on d failed first: killed by SIGKILL (signal 9).\n"
OTHERS = "lockstep: processes 0-1 failed 0.3 s later: process 2 of 4 is gone\n"
ON_D = Struck("process killed", "d", 2)


def test_one_seed_meets_all_kinds_equally_often_and_always_at_the_same_moments() -> None:
    kinds = list(faults.KINDS)
    plans = [faults.draw(7, number, kinds) for number in range(len(kinds))]
    firsts = [strike.faults[0].kind for plan in plans for strike in plan.strikes]
    assert collections.Counter(firsts) == dict.fromkeys(kinds, faults.STRIKES)
    assert plans == [faults.draw(7, number, kinds) for number in range(len(kinds))]
    assert plans != [faults.draw(8, number, kinds) for number in range(len(kinds))]
    assert {len(strike.faults) for plan in plans for strike in plan.strikes} == {1, 2}


def test_a_step_that_is_left_out_or_made_twice_changes_the_state() -> None:
    state = np.array(known.after(6), np.float32)
    found = known.advanced(state, known.total(state, 6))
    assert tuple(found) == known.after(7)
    assert tuple(known.advanced(found, known.total(found, 6))) != known.after(8)


def test_every_pattern_can_be_filled() -> None:
    for kind in faults.KINDS:
        for cause in Struck(kind, "d", 2).causes:
            assert "{" not in cause


def test_the_first_line_of_each_failure_is_judged() -> None:
    said = f"[2@d] failed\n{KILLED}{OTHERS}{AGAIN}{STARTS}"
    assert oracle.headlines(said) == [KILLED.strip()]
    assert oracle.judge(said, [ON_D], has_ended=False) == ("named right", KILLED.strip(), None)
    for wrong in (Struck("process killed", "c", 1), Struck("link cut", "d", 2)):
        assert oracle.judge(said, [wrong], has_ended=False).what == "named wrong"
    both = [Struck("link cut", "c", 1), ON_D]
    assert oracle.judge(said, both, has_ended=False).what == "named right"
    twice = f"{said}{KILLED.replace('process 2 of 4 on d', 'process 1 of 4 on c')}"
    assert oracle.judge(twice, [ON_D], has_ended=False).what == "named wrong"


def test_of_two_processes_that_abort_the_first_line_is_judged() -> None:
    first = (
        "lockstep: process 3 (pid 136 on e) was killed by SIGABRT (signal 6) after 0 collectives"
    )
    said = f"{first}\nlockstep: process 0 on b failed 0.0 s later: killed by SIGABRT\n{OTHERS}"
    aborted = [Struck("address space taken", *at) for at in (("e", 3), ("b", 0))]
    assert oracle.judge(said, aborted, has_ended=False) == ("named right", first, None)
    assert oracle.judge(said, aborted[1:], has_ended=False).what == "named wrong"


def test_a_kill_is_not_survived_and_a_slow_link_is() -> None:
    assert oracle.judge("", [ON_D], has_ended=False).what == "unnoticed"
    slow = Struck("packets delayed", "d", 2)
    assert oracle.judge("", [slow], has_ended=False).what == "survived"
    assert oracle.judge(KILLED, [slow], has_ended=False).what == "named wrong"


def test_an_end_without_a_cause_is_wrong() -> None:
    refused = "lockstep: not started again: 0 of 4 hosts are left\n"
    found = oracle.judge(refused, [ON_D], has_ended=True, status=1)
    assert found == ("ended, unnamed (status 1)", refused.strip(), None)
    assert oracle.judge(KILLED + refused, [ON_D], True, 1).what == "ended, named right"


def ends(process: int, steps: int, of: int) -> str:
    return f"[{process}@b] ends after {steps} steps with {' '.join(map(str, known.after(of)))}\n"


def test_numbers_are_compared_with_those_that_are_known() -> None:
    right = "".join(ends(process, 9, 9) for process in range(3))
    assert oracle.wrong_numbers(right, {3, 4}) == []
    assert oracle.wrong_numbers(right, {4}) == ["3 processes have said their numbers"]
    assert oracle.wrong_numbers(right + ends(3, 9, 8), {4}) == [
        "the processes have ended with different numbers",
        "after 9 steps",
    ]
    wrong = f"[0@b] WRONG psum in step 3: [1.0] for [2.0]\n{right}"
    assert oracle.wrong_numbers(wrong, {3}) == [wrong.splitlines()[0]]


def test_the_table_has_a_row_for_each_kind() -> None:
    table = Table()
    table.add([ON_D], Verdict("named right", "", 1.25))
    table.add([ON_D], Verdict("named wrong", "", 0.5))
    table.add([Struck("no ports", "d", 2)], Verdict("survived", ""))
    table.add([ON_D, ON_D], Verdict("ended, unnamed (status 1)", ""))
    assert str(table).splitlines()[2:] == [
        "| process killed | 2 | 1 | 1 | 0 | 0.5 to 1.2 |",
        "| no ports | 1 | 0 | 0 | 1 |  |",
        "| two at once | 1 | 0 | 1 | 0 |  |",
    ]


LOSSES = "process killed,agent killed,guard killed,host killed,process 0's host killed,link cut"


@pytest.mark.parametrize(
    ("kinds", "count", "seconds"),
    [
        full("process killed,packets delayed", 2, 390, marks=[pytest.mark.timeout(400)]),
        pytest.param(LOSSES, 30, 2900, marks=[pytest.mark.slow, pytest.mark.timeout(3000)]),
    ],
    ids=["two kinds", "all that is lost at once"],
)
@needs(possible(), "needs root, openssh-server and namespaces: .ci/tools installs them")
def test_jobs_that_meet_some_kinds(kinds: str, count: int, seconds: int) -> None:
    seed = 990_000 + random.randrange(1000)
    file = RESULTS / f"chaos-{seed}.json"
    words = [sys.executable, str(Path(__file__).parent / "chaos.py"), "--seed", str(seed)]
    words += ["--faults", str(count), "--kinds", kinds]
    done = captured(words, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text())
    file.unlink()
    assert document["faults"] >= count
    assert document["wrong"] == []
    assert document["rows"]["process killed"]["named right"] >= 1
