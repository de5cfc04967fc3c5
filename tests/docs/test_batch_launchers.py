"""The commands of docs/reference/run.md for LSF and PBS, under stand-ins for their launchers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from page_commands import ROOT, listed_lines
from processes import captured
from support import MARK, marked, wait_until
from worker import batch_launchers
from worker.test_worker_command import CLEAN, SUM, sums

PAGE = (ROOT / "docs" / "reference" / "run.md").read_text()
LSF = re.findall(r"`((?:blaunch|jsrun) [^`]+)`", PAGE)
SECONDS = 150

pytestmark = pytest.mark.full


def pbs_lines() -> list[str]:
    """The lines of the page for PBS, and the line that makes the key which they use."""
    lines = listed_lines(PAGE)
    key = [line for line in lines if re.match(r"\(umask .*/\.lockstep-key\)$", line)]
    return key + [line for line in lines if re.match(r"cp \$PBS|pbsdsh ", line)]


def typed(script: str, folder: Path, job: Mapping[str, str]) -> str:
    """What a job's script prints, in ``folder``, which has the program."""
    (folder / "train.py").write_text(SUM)
    batch_launchers.write(folder / "bin")
    mark = uuid.uuid4().hex
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), MARK: mark}
    try:
        done = captured(
            ["bash", "-e", "-c", script], env={**CLEAN, **own, **job}, cwd=folder, timeout=SECONDS
        )
        wait_until(lambda: not marked(mark), f"an end of {marked(mark)}")
    finally:
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert done.returncode == 0, f"$ {script}\n{done.stdout}{done.stderr}"
    return done.stdout


def sums_of(processes: int, devices: int) -> list[str]:
    return sorted(
        f"sum {i} {devices} {[10 + j for j in range(processes)]}" for i in range(processes)
    )


def test_the_page_has_a_line_for_each_launcher() -> None:
    assert [line.split()[0] for line in LSF] == ["blaunch", "jsrun"]
    assert [line.split()[0] for line in pbs_lines()] == ["(umask", "cp", "pbsdsh"]


@pytest.mark.parametrize("line", LSF)
def test_lsf(line: str, tmp_path: Path) -> None:
    processes = int((re.findall(r"-n (\d+)", line) or ["2"])[0])
    output = typed(line, tmp_path, batch_launchers.lsf_job(os.getpid(), slots=2))
    assert sums(output) == sums_of(processes, 1), output


def test_pbs(tmp_path: Path) -> None:
    job = batch_launchers.pbs_job(os.getpid(), 2, tmp_path)
    output = typed("\n".join(pbs_lines()), tmp_path, job)
    assert sums(output) == sums_of(2, 8), output
    assert (tmp_path / ".lockstep-key").stat().st_mode & 0o777 == 0o600


def test_pbs_without_the_copy_of_the_hosts(tmp_path: Path) -> None:
    """What the page says of ``pbsdsh``: its tasks do not get the file of the hosts."""
    [line] = re.findall(r"\$\(command -v lockstep\) worker .*", pbs_lines()[-1])
    job = batch_launchers.pbs_job(os.getpid(), 2, tmp_path)
    with pytest.raises(AssertionError, match="copy it to a folder that all hosts share"):
        typed(f"pbsdsh -- {line}", tmp_path, job)
