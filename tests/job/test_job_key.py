"""The key without which the engine does not reach other hosts: its file and its holders."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lanes import full
from lockstep._config import Config
from lockstep.engine.options import Network
from lockstep.job import job_key
from lockstep.job.job_key import JobKey
from of_this_jax import MUTUAL_TLS
from processes import captured, clean_environ, free_port, run_processes, write_key

SECRET = "k" * 64
"""What `write_key` writes."""


def test_the_module_says_where_each_key_is_derived() -> None:
    source = Path(lockstep.__file__).parent
    places = [
        ".".join(path.relative_to(source.parent).with_suffix("").parts)
        for path in source.rglob("*.py")
        if "job_key.derive(" in path.read_text()
    ]
    said = re.findall(r"^    (lockstep\.\S+) ", job_key.__doc__ or "", re.MULTILINE)
    assert sorted(said) == sorted(places)


# The key file


def test_the_key_is_the_digest_of_what_the_file_holds(tmp_path: Path) -> None:
    one = job_key.read_key(str(write_key(tmp_path / "one")))
    other = job_key.read_key(str(write_key(tmp_path / "other", f"\n  {SECRET} \r\n", 0o400)))
    assert one == other == JobKey(hashlib.sha256(SECRET.encode()).digest())
    different = job_key.read_key(str(write_key(tmp_path / "different", SECRET[:-1])))
    assert one.key != different.key


def test_a_path_from_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_key(tmp_path / "key")
    assert job_key.read_key("~/key").key is not None


def test_a_relative_path_is_taken_where_the_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_key(Path("key"))
    config = Config.from_environ({"LOCKSTEP_KEY_FILE": "key"})
    monkeypatch.chdir("/")
    assert job_key.read_key(config.key_file).key is not None
    assert Config.from_environ(config.to_environ()) == config


@pytest.mark.parametrize(
    ("local", "total", "hosts", "joined", "has_key"),
    [
        (2, 2, None, 2, True),  # lockstep run on one host
        (2, 4, 2, 4, True),  # lockstep run --hosts: one launcher has started all four
        (2, 4, None, 4, False),  # two launchers, each of which has a secret of its own
        (2, 2, None, 4, False),  # a program that joins the processes of two launchers
        (2, 4, 2, 8, False),
    ],
)
def test_the_secret_of_a_run_is_for_a_job_that_one_launcher_has_started(
    local: int,
    total: int,
    hosts: int | None,
    joined: int,
    has_key: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_key(tmp_path / "secret")
    config = Config(
        local_num_processes=local, num_processes=total, num_hosts=hosts, run_dir=str(tmp_path)
    )
    monkeypatch.setattr(job_key._config, "current", lambda: config)
    job_key.own.cache_clear()
    try:
        assert (job_key.job_key(joined) is not None) == has_key
    finally:
        job_key.own.cache_clear()


@pytest.mark.parametrize("path", [None, ""])
def test_without_the_variable_there_is_no_key_and_no_problem(path: str | None) -> None:
    file = job_key.read_key(path)
    assert file == JobKey()


def test_the_key_is_not_printed() -> None:
    key = hashlib.sha256(SECRET.encode()).digest()
    shown = repr(JobKey(key)) + repr(
        Network(["", "10.0.0.2:1"], [0, 0], [0, 1], 3, key, "libssl.so.3")
    )
    assert "10.0.0.2" in shown
    assert "key=" not in shown
    assert repr(key) not in shown


MAKE = "openssl rand -hex 32 > {}"
ANY = MAKE.format("~/")


def write(**values: Any) -> Callable[[Path], Path]:
    return functools.partial(write_key, **values)


@pytest.mark.parametrize(
    ("make", "problem", "fix"),
    [
        (lambda path: None, "cannot be read (No such file or directory)", ANY),
        (os.mkdir, "is no regular file", ANY),
        (os.mkfifo, "is no regular file", ANY),
        (write(text=f"{SECRET[:31]}   \n"), "has 31 characters, and a key has at least 32", MAKE),
        (write(text=""), "has 0 characters, and a key has at least 32", MAKE),
        (write(mode=0o640), "can be read or written by others (mode 0640)", "chmod 600 {}"),
        (write(mode=0o606), "can be read or written by others (mode 0606)", "chmod 600 {}"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, make: Callable[[Path], object], problem: str, fix: str
) -> None:
    path = tmp_path / "key"
    make(path)
    file = job_key.read_key(str(path))
    assert file.key is None
    assert file.problem == f"LOCKSTEP_KEY_FILE={path}: the file {problem}."
    assert fix.format(path) in file.fix
    assert SECRET[:31] not in f"{file.problem}{file.fix}"


def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_key(tmp_path / "key")
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    file = job_key.read_key(str(path))
    if owner == 0:  # root's files are everybody's to trust
        assert file.key is not None
        os.chown(path, 4711, 4711)
        owner, file = 4711, job_key.read_key(str(path))
    assert f"belongs to user {owner}, so that this user knows and may" in file.problem


def test_a_name_that_is_none() -> None:
    assert "cannot be read" in job_key.read_key("a\0b").problem


# Keys that are derived from it


def test_derived_keys_are_those_of_hkdf() -> None:
    """RFC 5869's third test case, whose purpose and salt are empty."""
    made = job_key.derive(b"\x0b" * 22, "", 42).hex()
    assert made.startswith("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d")
    assert made.endswith("9d201395faa4b61a96c8")
    assert job_key.derive(b"k", "a") != job_key.derive(b"k", "b") != job_key.derive(b"l", "b")


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
        full(0o644, ["chmod 600", "by others (mode 0644)."]),
    ],
    ids=["none", "readable"],
)
def test_a_process_without_a_key_lets_no_process_wait(
    tmp_path: Path, mode: int | None, words: list[str]
) -> None:
    if MUTUAL_TLS:  # it cannot even connect to JAX's service
        missing = "process 1 did not join the job of 2 processes within 5 s"
        words = [missing, "Error" if mode is None else words[1]]
    address = f"127.0.0.1:{free_port()}"
    environs = [{"LOCKSTEP_HOST_ID": f"host {i}"} for i in range(2)]
    environs[0]["LOCKSTEP_KEY_FILE"] = str(write_key(tmp_path / "key"))
    for environ in environs:
        environ["LOCKSTEP_START_TIMEOUT"] = "5"
    if mode is not None:
        environs[1]["LOCKSTEP_KEY_FILE"] = str(write_key(tmp_path / "other", mode=mode))
    for process, ended in enumerate(
        run_processes(PROGRAM, environs, [[address, str(i)] for i in range(2)])
    ):
        assert ended.status == 1, ended
        assert words[process] in ended.stderr, ended
        assert SECRET not in ended.stderr


RECORDS = """
import lockstep, jax
jax.distributed.initialize()
jax.devices()
if jax.process_index() == 0:
    from jax._src import distributed
    for name, text in distributed.global_state.client.key_value_dir_get("lockstep/"):
        print("record", name, text[:64].isalnum() and text[64:66] == " {")
"""


def test_every_record_of_a_run_on_one_host_is_authenticated(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RECORDS)
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", str(program)]
    done = captured(command, timeout=90, env=clean_environ())
    assert done.returncode == 0, done
    found = re.findall(r"record (\S+) (\w+)", done.stdout)
    names = {re.sub(r"\d+", "N", name) for name, _ in found}
    assert {"lockstep/peer/N", "lockstep/arena/N/N", "lockstep/record/N/N"} <= names, done
    assert {is_authenticated for _, is_authenticated in found} == {"True"}, done.stdout
