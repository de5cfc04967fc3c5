"""The directory that the processes of a host share: made by the first, removed by the last."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lockstep.job import job_key
from lockstep.processes import host_dir
from lockstep.processes.host_dir import HostDir


@pytest.fixture(autouse=True)
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_processes_of_a_job_share_it_and_the_last_knows() -> None:
    first, second = HostDir(["job 1"], 0, 0), HostDir(["job 1"], 0, 1)
    assert first.path == second.path
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert (first.folder, second.folder) == (
        first.path / "attempt_0" / "process_0",
        first.path / "attempt_0" / "process_1",
    )
    (first.folder / "recorder.bin").touch()
    assert not first.is_last()
    assert second.is_last()
    assert (first.folder / "recorder.bin").exists()


def test_other_jobs_have_others() -> None:
    assert HostDir(["job 1"], 0, 0).path != HostDir(["job 2"], 0, 0).path


def test_what_an_earlier_job_has_left_is_not_found() -> None:
    earlier = HostDir(["job 1"], 0, 0)
    (earlier.folder / "exit.json").touch()
    (earlier.path / "else").touch()
    os.close(earlier.held)  # its agents were killed
    later = HostDir(["job 1"], 0, 1)
    assert later.path == earlier.path
    assert list(later.path.rglob("*")) == [later.folder.parent, later.folder]


def test_a_job_that_still_runs_keeps_what_is_its_own() -> None:
    """One of the same name comes too early: it gets another one."""
    earlier = HostDir(["job 1"], 0, 0)
    (earlier.folder / "exit.json").touch()
    later = HostDir(["job 1"], 0, 0)
    assert later.path != earlier.path
    assert (earlier.folder / "exit.json").exists()
    assert not list(later.folder.iterdir())
    assert later.is_last()
    assert earlier.is_last()


@pytest.mark.parametrize("what", ["a link", "open to all", "a file"])
def test_what_another_user_has_put_there_is_not_used(what: str, top: Path) -> None:
    expected = HostDir(["job 1"], 0, 0)
    expected.folder.rmdir()
    expected.folder.parent.rmdir()
    expected.path.rmdir()
    other = top / "other"
    other.mkdir()
    if what == "a link":
        expected.path.symlink_to(other)
    elif what == "open to all":
        expected.path.mkdir()
        expected.path.chmod(0o777)
    else:
        expected.path.touch()
    made = HostDir(["job 1"], 0, 0)
    assert made.path != expected.path
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert not list(other.iterdir())


def test_a_directory_that_the_last_removes_meanwhile_is_made_anew() -> None:
    """It waits for the lock of one that is about to remove it."""
    earlier = HostDir(["job 1"], 0, 0)
    assert earlier.is_last()  # and nobody else gets the lock
    if (child := os.fork()) == 0:
        signal.alarm(30)
        os.close(earlier.held)  # a program closes it when it starts
        made = HostDir(["job 1"], 0, 1)
        os._exit(0 if made.folder.is_dir() else 1)
    for entry in (earlier.folder, earlier.folder.parent, earlier.path):
        entry.rmdir()
    os.close(earlier.held)
    assert os.waitpid(child, 0)[1] == 0


def test_one_that_is_never_let_go_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is about to remove it may have been stopped."""
    monkeypatch.setattr(host_dir, "_PAUSE_SECONDS", 0.001)
    earlier = HostDir(["job 1"], 0, 0)
    assert earlier.is_last()
    later = HostDir(["job 1"], 0, 1)
    assert later.path != earlier.path
    assert later.is_last()


def test_processes_of_one_job_on_one_host_share_a_secret() -> None:
    first, second, other = HostDir(["a"], 0, 0), HostDir(["a"], 0, 1), HostDir(["b"], 0, 0)
    for each in (first, second, other):
        each.share_secret()
    secret = first.path / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    text = secret.read_text()
    assert len(text) == 64
    second.share_secret()
    assert secret.read_text() == text != (other.path / "secret").read_text()
    assert job_key.read_key(str(secret)).key is not None
    assert sorted(p.name for p in first.path.iterdir()) == ["attempt_0", "secret"]


def test_a_directory_of_one_process_has_no_secret() -> None:
    """The other processes of the job would have another one."""
    HostDir(["job 1"], 0, 0)
    alone = HostDir(["job 1"], 0, 0)
    alone.share_secret()
    assert not (alone.path / "secret").exists()
