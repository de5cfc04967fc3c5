"""The key without which the engine does not reach other hosts: its file, and who has it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep import ConfigError, DisagreementError, InitializationError
from lockstep._config import Config
from lockstep._engine_options import Network
from lockstep.runtime import network
from lockstep.runtime.network import KeyFile
from lockstep.runtime.topology import Peer
from processes import free_port, run_processes
from runtime.peers import peer

SECRET = "0123456789abcdef" * 4


def write(path: Path, text: str = f"{SECRET}\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# The key file


def test_the_key_is_the_digest_of_what_the_file_holds(tmp_path: Path) -> None:
    one = network.read_key(str(write(tmp_path / "one")))
    other = network.read_key(str(write(tmp_path / "other", f"\n  {SECRET} \r\n", 0o400)))
    assert one == other == KeyFile(hashlib.sha256(SECRET.encode()).digest())
    different = network.read_key(str(write(tmp_path / "different", SECRET[:-1])))
    assert one.mark == other.mark != different.mark


def test_a_path_from_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "key")
    assert network.read_key("~/key").key is not None


def test_a_relative_path_is_taken_where_the_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("key"))
    config = Config.from_environ({"LOCKSTEP_KEY_FILE": "key"})
    monkeypatch.chdir("/")
    assert network.read_key(config.key_file).key is not None
    assert Config.from_environ(config.to_environ()) == config


@pytest.mark.parametrize("path", [None, ""])
def test_without_the_variable_there_is_no_key_and_no_problem(path: str | None) -> None:
    file = network.read_key(path)
    assert file == KeyFile()
    assert file.mark == ""


def test_the_key_is_not_printed() -> None:
    key = hashlib.sha256(SECRET.encode()).digest()
    shown = repr(KeyFile(key)) + repr(Network(["", "10.0.0.2:1"], [0, 0], 3, key, "libssl.so.3"))
    assert "10.0.0.2" in shown
    assert "key=" not in shown
    assert repr(key) not in shown


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def nothing(path: Path) -> None:
    pass


def short(path: Path) -> None:
    write(path, f"{SECRET[:31]}   \n")


def empty(path: Path) -> None:
    write(path, "")


def for_the_group(path: Path) -> None:
    write(path, mode=0o640)


def for_all(path: Path) -> None:
    write(path, mode=0o606)


@pytest.mark.parametrize(
    ("make", "problem", "mend"),
    [
        (nothing, "cannot be read (No such file or directory)", "openssl rand -hex 32 > ~/"),
        (directory, "is no regular file", "openssl rand -hex 32 > ~/"),
        (pipe, "is no regular file", "openssl rand -hex 32 > ~/"),
        (short, "has 31 characters, and a key has at least 32", "openssl rand -hex 32 > {}"),
        (empty, "has 0 characters, and a key has at least 32", "openssl rand -hex 32 > {}"),
        (for_the_group, "can be read or written by others (mode 0640)", "chmod 600 {}"),
        (for_all, "can be read or written by others (mode 0606)", "chmod 600 {}"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, make: Callable[[Path], None], problem: str, mend: str
) -> None:
    path = tmp_path / "key"
    make(path)
    file = network.read_key(str(path))
    assert file.key is None
    assert file.problem == f"LOCKSTEP_KEY_FILE={path}: the file {problem}."
    assert mend.format(path) in file.mend
    assert SECRET[:31] not in f"{file.problem}{file.mend}"


def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "key")
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    file = network.read_key(str(path))
    if owner == 0:  # root's files are everybody's to trust
        assert file.key is not None
        os.chown(path, 4711, 4711)
        owner, file = 4711, network.read_key(str(path))
    assert f"belongs to user {owner}, who knows and may change the key" in file.problem


def test_a_name_that_is_none() -> None:
    assert "cannot be read" in network.read_key("a\0b").problem


# All have the same key, or nobody has one


def job(*keys: str) -> list[Peer]:
    return [peer(process, key=key) for process, key in enumerate(keys)]


def test_all_or_none() -> None:
    assert network.have_keys(job("x", "x", "x"), 1)
    assert not network.have_keys(job("", "", ""), 1)


@pytest.mark.parametrize("process", [0, 1, 2])
def test_all_raise_and_name_who_lacks_a_key(process: int) -> None:
    with pytest.raises(DisagreementError) as caught:
        network.have_keys(job("x", "", "x"), process)
    assert str(caught.value).startswith(
        "LOCKSTEP_KEY_FILE is set for some processes only; without it: process 1 (pid 101 on b). "
    )


@pytest.mark.parametrize("process", [0, 1, 2])
def test_all_raise_and_name_who_has_another_key(process: int) -> None:
    with pytest.raises(DisagreementError) as caught:
        network.have_keys(job("x", "x", "y"), process)
    text = str(caught.value)
    assert "than process 0 (pid 100 on a) has: process 2 (pid 102 on a). Copy one file" in text


def test_of_many_only_some_are_named() -> None:
    with pytest.raises(DisagreementError) as caught:
        network.have_keys(job("x", *[""] * 99), 0)
    assert "process 4 (pid 104 on a), 95 more." in str(caught.value)


def test_a_file_of_no_use_is_everybody_s_error() -> None:
    peers = [peer(0, key="x"), peer(1, key_problem="LOCKSTEP_KEY_FILE=k: the file is bad. Mend.")]
    with pytest.raises(ConfigError, match=r"^LOCKSTEP_KEY_FILE=k: the file is bad\. Mend\.$"):
        network.have_keys(peers, 1)
    with pytest.raises(InitializationError) as caught:
        network.have_keys(peers, 0)
    assert str(caught.value).startswith("process 1 (pid 101 on b): LOCKSTEP_KEY_FILE=k: the file ")


def test_what_a_process_tells_of_its_key(tmp_path: Path) -> None:
    own = peer(0)
    told = network.describe(own, network.read_key(str(write(tmp_path / "k"))), "127.0.0.1:80")
    assert told.has_key
    assert told.address == "127.0.0.1"
    assert re.fullmatch(r"[0-9a-f-]{36}/net:\[\d+\]", told.network)
    key = hashlib.sha256(SECRET.encode()).digest()
    assert SECRET not in told.to_json()
    assert key.hex()[:16] not in told.to_json()
    assert network.describe(own, KeyFile(), "127.0.0.1:80") == own
    bad = network.describe(own, KeyFile(None, "It is bad.", "Mend it."), "127.0.0.1:80")
    assert (bad.has_key, bad.key_problem) == (False, "It is bad. Mend it.")


# In a job

PROGRAM = """
import lockstep
import sys, jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
jax.devices()
"""


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (None, ["without it: process 1 (pid "] * 2),
        (0o644, ["chmod 600", "by others (mode 0644)."]),
    ],
    ids=["none", "readable"],
)
def test_a_process_without_a_key_lets_nobody_wait(
    tmp_path: Path, mode: int | None, words: list[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    environs = [{"LOCKSTEP_HOST_ID": f"host {i}"} for i in range(2)]
    environs[0]["LOCKSTEP_KEY_FILE"] = str(write(tmp_path / "key"))
    if mode is not None:
        environs[1]["LOCKSTEP_KEY_FILE"] = str(write(tmp_path / "other", mode=mode))
    for process, ended in enumerate(
        run_processes(PROGRAM, environs, [[address, str(i)] for i in range(2)])
    ):
        assert ended.status == 1, ended
        assert words[process] in ended.stderr, ended
        assert SECRET not in ended.stderr
