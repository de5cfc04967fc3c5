"""A network that parts at each moment of a restart: never do two attempts run at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts.journal import JOINED, PROGRAM, TIMEOUT, Journal
from ssh_hosts import NEEDED, SshHosts, ssh_hosts
from support import wait_until

pytestmark = [NEEDED, pytest.mark.timeout(240)]


class Job(Journal):
    """A job on the hosts, of which host a has the launcher alone, and d is a spare."""

    def __init__(self, hosts: SshHosts, folder: Path, program: str, names: str) -> None:
        super().__init__(hosts, folder, program)
        options = ["--hosts", ",".join(names), "--chdir", str(folder), "--spares", "1"]
        options += ["--max-restarts", "5", "--grace", "2"]
        words = hosts.lockstep("run", *options, "program.py")
        to_file = ["sh", "-c", f'exec "$@" 2>{self.said_at}', "sh", *words]
        self.launcher = hosts.start("a", to_file)

    def last_said(self) -> int:
        """The number of the attempt that goes on with the spare."""
        found = r"d takes the place of b.*\n.*attempt (\d) starts"
        wait_until(lambda: bool(re.search(found, self.said)), "the next attempt starts", TIMEOUT)
        [number] = re.findall(found, self.said)
        return int(number)

    def finish(self) -> None:
        """Lets the last attempt end, which has to end well."""
        self.let_last_end()
        self.launcher.communicate(timeout=TIMEOUT)
        assert self.launcher.returncode == 0, self.said


def assert_ended(hosts: SshHosts, name: str) -> None:
    """That a host which was cut off runs nothing any more, and says why."""

    def left() -> list[str]:
        return [each for each in hosts.leftovers() if each.startswith(f"{name}: process ")]

    # An agent without processes, between two attempts, has 30 s.
    wait_until(lambda: not left(), f"an end of {left()}", 40.0)
    [log] = (hosts.folder / name / "tmp").glob("lockstep-failed-*/agents.log")
    assert re.search(
        r"process \d of \d of program.py, attempt \d: the launcher has confirmed no answer of this "
        r"host for 9 s, so its processes may run elsewhere by now\n"
        r"|no processes: it received nothing from the launcher for 30 s\n",
        log.read_text(),
    )


def while_it_runs(job: Job) -> None:
    job.wait(0, "b", "steps")


def while_the_rest_is_stopped(job: Job) -> None:
    job.fail("c", "bc")
    job.wait(0, "b", "saves")


def when_the_next_attempt_is_planned(job: Job) -> None:
    job.fail("c", "bc")
    job.wait_said("starting again (5 restarts left)")


def when_the_next_attempt_is_ordered(job: Job) -> None:
    job.fail("c", "bc")
    job.wait_said("attempt 1 starts")


def when_a_process_starts(job: Job) -> None:
    job.fail("c", "bc")
    job.wait(1, "b", "starts")


def in_the_first_step(job: Job) -> None:
    job.fail("c", "bc")
    job.wait(1, "b", "joined")


MOMENTS = [
    while_it_runs,
    while_the_rest_is_stopped,
    when_the_next_attempt_is_planned,
    when_the_next_attempt_is_ordered,
    when_a_process_starts,
    in_the_first_step,
]


@pytest.mark.full
@pytest.mark.parametrize("program", [PROGRAM, JOINED], ids=["alone", "joined"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_one_side_goes_on_and_the_other_ends(
    tmp_path: Path, moment: Callable[[Job], None], program: str
) -> None:
    if program == PROGRAM and moment is in_the_first_step:
        program = program.replace('note("starts")', 'note("joined")')
    with ssh_hosts(tmp_path, "abcd") as hosts:
        job = Job(hosts, tmp_path, program, "bcd")
        moment(job)
        hosts.cut("b")
        job.wait_said("d takes the place of b, which was lost, with process 0")
        attempt = job.last_said()
        job.wait(attempt, "c", "steps")
        job.wait(attempt, "d", "steps")
        assert_ended(hosts, "b")
        job.finish()
        job.assert_one_at_a_time()


def goes_on_elsewhere(hosts: SshHosts, folder: Path, strike: Callable[[], None]) -> str:
    """What the launcher says when the only process has to start on the spare, after ``strike``.

    Nothing has to be stopped then, so that the next attempt follows the loss at once.
    """
    job = Job(hosts, folder, PROGRAM, "bd")
    job.wait(0, "b", "steps")
    strike()
    job.wait(1, "d", "steps")
    assert_ended(hosts, "b")
    job.finish()
    job.assert_one_at_a_time()
    return job.said


def test_no_process_is_left_when_the_only_one_starts_elsewhere(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abcd") as hosts:
        # The launcher's signs of life arrive, and no answer does.
        said = goes_on_elsewhere(hosts, tmp_path, lambda: hosts.mute("b", "a"))
        assert "no answer from b for 10 s" in said


@pytest.mark.full
def test_a_connection_that_breaks_early_is_no_end_of_the_processes(tmp_path: Path) -> None:
    """ssh may give up before the launcher does; the agent of a host that is cut off lives on."""
    with ssh_hosts(tmp_path, "abcd") as hosts:
        config = hosts.config.read_text()
        hosts.config.write_text(f"{config}  ServerAliveInterval 1\n  ServerAliveCountMax 2\n")
        said = goes_on_elsewhere(hosts, tmp_path, lambda: hosts.cut("b"))
        assert "until the processes on b have ended" in said


@pytest.mark.full
def test_a_launcher_that_is_cut_off_ends_and_so_do_all_processes(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abcd") as hosts:
        job = Job(hosts, tmp_path, PROGRAM, "bcd")
        job.wait(0, "b", "steps")
        job.wait(0, "c", "steps")
        hosts.cut("a")
        job.launcher.communicate(timeout=TIMEOUT)
        assert job.launcher.returncode == 1
        assert "not started again: 0 of 2 hosts are left, and the job needs 2" in job.said
        for name in "bc":
            assert_ended(hosts, name)
        assert {each.attempt for each in job.journal} == {0}
