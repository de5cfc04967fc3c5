"""The commands of docs/reference/run.md for two hosts without a launcher, typed on hosta."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from lanes import needs
from page_commands import ROOT, listed_lines
from ssh_hosts import possible, ssh_hosts
from support import assert_unsaid
from worker.test_worker_command import SUM, sums

PAGE = (ROOT / "docs" / "reference" / "run.md").read_text()
LINES = listed_lines(PAGE)
SECONDS = 120

pytestmark = [
    pytest.mark.full,
    needs(
        possible() and all(map(shutil.which, ("scp", "openssl"))),
        "needs root, openssh-server, openssl and namespaces: .ci/tools installs them",
    ),
]


def one(pattern: str) -> str:
    [line] = [line for line in LINES if re.match(pattern, line)]
    return line


def test_the_key_its_copy_and_a_process_on_each_host(tmp_path: Path) -> None:
    make_key = one(r"\(umask .*/\.lockstep-key\)$")
    [copy_key] = re.findall(r"`(scp [^`]+)`", PAGE)
    there, here = one(r"ssh hostb .*&$"), one(r"LOCKSTEP_KEY_FILE=.*RANK=0")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SUM)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with ssh_hosts(tmp_path, ("hosta", "hostb")) as hosts:
        settings = tmp_path / "hosta" / "home" / ".ssh"
        settings.mkdir()
        shutil.copy(hosts.config, settings / "config")
        script = "\n".join([f"cd {work}", make_key, copy_key, there, here, "wait"])
        done = hosts.run("hosta", ["bash", "-c", script], env={"PATH": path}, timeout=SECONDS)
        assert sums(done.stdout) == ["sum 0 1 [10, 11]", "sum 1 1 [10, 11]"], (
            done.stdout + done.stderr
        )
        assert_unsaid("no key", done.stderr)
        keys = [tmp_path / name / "home" / ".lockstep-key" for name in hosts.names]
        assert keys[0].read_text() == keys[1].read_text()
        hosts.assert_nothing_left()
