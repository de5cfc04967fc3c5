"""The facts that an agent gathers, of this very machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep.hosts.checks import facts, preflight
from lockstep.hosts.checks.request import HostState, Request


def gather(**request: Any) -> dict[str, Any]:
    return json.loads(json.dumps(facts.gather(request)))


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 4000 10.0.0.1 22")
    found = gather()
    assert found["versions"]["jax"] == importlib.metadata.version("jax")
    assert found["versions"]["lockstep"] == importlib.metadata.version("lockstep-jax")
    assert found["reached_at"] == "10.0.0.1"
    assert found["run_dir"]["path"] == str(tmp_path)
    assert found["run_dir"]["free"] > 0
    assert list(tmp_path.iterdir()) == []
    assert found["memory"] > 0
    assert "127.0.0.1" in [each["address"] for each in found["interfaces"]]
    checked = preflight.check([HostState("a", "a", facts=found)], Request())
    assert "jax" in [each.name for each in checked["a"]]


def test_programs_and_directories(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print(1)")
    found = gather(directory=str(tmp_path), program=["train.py"])
    assert found["directory_problem"] == ""
    digest = hashlib.sha256(b"print(1)").hexdigest()
    assert found["program"] == {"path": str(program), "sha256": digest, "problem": ""}
    found = gather(directory=str(tmp_path / "no"), program=["train.py"])
    assert found["directory_problem"] == "does not exist"
    assert found["program"]["problem"] == "No such file or directory"
    found = gather(directory=str(program), program=[str(tmp_path)])
    assert found["directory_problem"] == "is no directory"
    assert "is a directory" in found["program"]["problem"]


def test_modules(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise SystemExit('imported')")
    for name in ("mine.part", "json", "sys"):
        assert gather(directory=str(tmp_path), program=["-m", name])["program"]["problem"] == ""
    for name in ("no_such_module.part", ""):
        problem = gather(directory=str(tmp_path), program=["-m", name])["program"]["problem"]
        assert "no module of this name" in problem


def test_a_directory_for_runs_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")
    assert gather()["run_dir"]["problem"]
    assert not os.path.exists("/proc/lockstep")
