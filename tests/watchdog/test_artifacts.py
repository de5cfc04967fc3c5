"""Where the records of other processes are: what they publish never becomes a path by itself."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from fake_job import peer
from lockstep import InitializationError
from lockstep.watchdog import artifacts
from lockstep.watchdog.artifacts import Artifacts


def private(tmp_path: Path) -> Path:
    """The folder of process 1 in a run's directory."""
    folder = tmp_path / "run" / "attempt_0" / "process_1"
    folder.mkdir(parents=True)
    (tmp_path / "run").chmod(0o700)
    return folder


def test_descriptors_become_files_of_that_process() -> None:
    own = Artifacts(*(f"/proc/7/fd/{fd}" for fd in range(3, 3 + len(artifacts.FILES))))
    there = dataclasses.replace(peer(1), pid=7)
    assert artifacts.of_peer(there, own.published()) == own
    assert artifacts.of_peer(peer(1), Artifacts().published()) == Artifacts()


def test_files_are_those_of_the_process_s_folder(tmp_path: Path) -> None:
    folder = str(private(tmp_path))
    said = {"folder": folder, "memory": {"record": 3, "sites": None, "stacks": None}}
    found = artifacts.of_peer(peer(1), said)
    assert found.record == "/proc/101/fd/3"
    assert found.sites == f"{folder}/sites.jsonl"
    assert found.stacks == f"{folder}/stacks.txt"
    assert (found.possible_sites, found.folder) == ("", folder)


@pytest.mark.parametrize("value", ["../../../etc/passwd", "3", -1, 1.5, True, [3]])
def test_what_is_no_descriptor_is_left_out(value: Any) -> None:
    said = {"folder": "", "memory": {"record": value, "sites": 4}}
    assert artifacts.of_peer(peer(1), said) == Artifacts(sites="/proc/101/fd/4")


@pytest.mark.parametrize("said", [None, [], "x", {}, {"folder": 1, "memory": {}}, {"folder": ""}])
def test_what_is_no_answer_is_an_error(said: Any) -> None:
    with pytest.raises(InitializationError, match="has not published where its records are"):
        artifacts.of_peer(peer(1), said)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = private(tmp_path)
    wrong = [
        "/etc",
        "relative/attempt_0/process_1",
        f"{folder}/../process_1",
        str(folder.with_name("process_2")),
        str(tmp_path / "none" / "attempt_0" / "process_1"),
    ]
    for path in wrong:
        with pytest.raises(InitializationError, match="which is not a private one"):
            artifacts.of_peer(peer(1), {"folder": path, "memory": {}})
    os.chmod(tmp_path / "run", 0o750)
    with pytest.raises(InitializationError, match="which is not a private one"):
        artifacts.of_peer(peer(1), {"folder": str(folder), "memory": {}})
