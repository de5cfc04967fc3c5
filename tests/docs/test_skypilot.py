"""The task of docs/how-to/skypilot.md: its commands, run as two nodes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from page_commands import files
from page_environments import commands_of
from processes import assert_all_well, captured, free_port, run_processes
from worker.test_worker_command import SUM, sums

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "skypilot.md").read_text()
READ = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
print(task.name, task.num_nodes, task.run, sep="\\n", end="")
"""
SECONDS = 200


def task() -> dict[str, Any]:
    return yaml.safe_load(files(PAGE)["train.yaml"])


def test_the_command_that_launches_the_task() -> None:
    [secret] = task()["secrets"]
    [line] = re.findall(r"^    (.* sky launch .*)$", PAGE, re.M)
    assert line.startswith(f"{secret}=$(openssl rand -hex 32) sky launch")
    assert line.endswith(f"--secret {secret} train.yaml")


@pytest.mark.full
@pytest.mark.timeout(900)  # the first run installs SkyPilot
def test_skypilot_reads_the_task(tmp_path: Path) -> None:
    version = re.search(r"SkyPilot (\d[\d.]+\d) reads", PAGE)
    assert version, "the page does not say which SkyPilot"
    python = commands_of(f"skypilot=={version[1]}") / "python"

    def read(document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.yaml").write_text(yaml.safe_dump(document))
        return captured(
            [python, "-c", READ, "train.yaml"],
            env={**os.environ, "HOME": str(tmp_path)},
            cwd=tmp_path,
            timeout=SECONDS,
        )

    done = read(task())
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{task()['name']}\n{task()['num_nodes']}\n{task()['run']}"
    wrong = read({**task(), "num_node": 2})
    assert wrong.returncode != 0
    assert "did you mean 'num_nodes'" in wrong.stderr, wrong


@pytest.mark.full
def test_its_commands_on_two_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SUM)
    both = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_NODES": str(task()["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        "SKYPILOT_TASK_ID": f"sky-2026-11-27-10-00-00-000000_train_{free_port()}",
        "TRAIN_KEY": "k" * 64,
    }
    environs = [{**both, "SKYPILOT_NODE_RANK": str(rank)} for rank in range(2)]
    shell = "import os, sys; os.chdir(os.environ['HOME']); "
    shell += "os.execvp('bash', ['bash', '-e', '-c', sys.argv[1]])"
    ended = run_processes(shell, environs, args=[[task()["run"]]] * 2, timeout=120)
    assert_all_well(ended)
    for rank, end in enumerate(ended):
        assert sums(end.stdout) == [f"sum {rank} 8 [10, 11]"], end
    key = tmp_path / "train-key"
    assert key.read_text() == both["TRAIN_KEY"]
    assert key.stat().st_mode & 0o777 == 0o600
