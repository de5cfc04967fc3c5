"""The launcher under a low soft limit on open files, which it raises itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from processes import captured, write_command

SOFT_LIMIT = 36
TOO_MANY = "Too many open files"


def lockstep(*words: str, hard: int | None = None) -> subprocess.CompletedProcess[str]:
    limits = f"ulimit -Sn {SOFT_LIMIT}" + (f"; ulimit -Hn {hard}" if hard else "")
    command = shlex.join([sys.executable, "-m", "lockstep", "run", *words, "-c", "pass"])
    return captured(["sh", "-c", f"{limits}; exec {command}"], timeout=120)


def fake_ssh(folder: Path) -> str:
    """A command that starts agents on this machine, whatever the host."""
    return write_command(folder / "ssh", 'for command; do :; done\nexec sh -c "$command"')


@pytest.mark.full
def test_room_for_processes() -> None:
    done = lockstep("-n", "20")
    assert done.returncode == 0, done


@pytest.mark.full
def test_room_for_agents(tmp_path: Path) -> None:
    hosts = ",".join(f"host{i}" for i in range(12))
    done = lockstep("--hosts", hosts, "--ssh", fake_ssh(tmp_path))
    assert TOO_MANY not in done.stderr, done
    # All agents have answered. These hosts have no addresses at which they could meet.
    assert "on 12 of 12 hosts" in done.stderr, done


def test_a_hard_limit_that_is_too_low_is_named_with_what_is_needed(tmp_path: Path) -> None:
    hosts = ",".join(f"host{i}" for i in range(12))
    done = lockstep("--hosts", hosts, "--ssh", fake_ssh(tmp_path), hard=SOFT_LIMIT)
    assert done.returncode == 1
    assert TOO_MANY in done.stderr, done
    assert "3 for each host of --hosts" in done.stderr, done
