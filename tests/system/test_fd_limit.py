"""How many files a process may have open: the limit is raised where that helps."""

from __future__ import annotations

import os
import resource

import pytest

from fake_job import peer
from lockstep import InitializationError, _config
from lockstep.system import fd_limit

OPEN = 20


class Limits:
    """Stands for the system's."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.now

    def set(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "after"),
    [
        (1024, 4096, 748, 1024),
        (1024, 4096, 749, 1025),
        (1024, 4096, 2000, 2276),
        (1024, 4096, 4000, 4096),
        (1024, 4096, 4076, 4096),
        (1024, resource.RLIM_INFINITY, 9000, 9276),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9000, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, needed: int, after: int
) -> None:
    limits = fake(monkeypatch, soft, hard)
    fd_limit.make_room(needed)
    assert limits.now == (after, hard)


def test_a_hard_limit_that_is_too_low_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = fake(monkeypatch, 1024, 4096)
    with pytest.raises(InitializationError) as caught:
        fd_limit.make_room(4077)
    text = str(caught.value)
    assert text.startswith("the engine needs 4077 file descriptors for the processes of ")
    assert "20 are open, and the limit of this process is 4096." in text
    assert "ulimit -n 4353" in text
    assert text.endswith("limit), or use --collectives gloo.")
    assert limits.now == (1024, 4096)
    supervisor = r"^the supervisor of --max-restarts needs 8024 file .* hard limit\)\.$"
    with pytest.raises(InitializationError, match=supervisor):
        fd_limit.make_room_for_agents(8000)


def test_what_is_needed_grows_with_the_processes_here_and_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fd_limit, "make_room", asked.append)
    monkeypatch.setattr(_config, "current", _config.Config)
    peers = [peer(process) for process in range(5)]
    fd_limit.make_room_for(peers, 0)  # three here, two elsewhere
    fd_limit.make_room_for(peers, 1)  # two here, three elsewhere
    assert asked[0] - asked[1] == 7 - 2
    monkeypatch.setattr(_config, "current", lambda: _config.Config(run_dir="/there"))
    fd_limit.make_room_for(peers, 0)
    assert asked[0] - asked[2] == 3 * 4


def fake(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Limits:
    limits = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    monkeypatch.setattr(os, "listdir", lambda path: [""] * OPEN)
    return limits
