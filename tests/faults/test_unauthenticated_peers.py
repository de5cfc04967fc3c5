"""A program that has no key attacks a real job: from another host, and as another user."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_job import peer
from faults.harness import PROGRAMS
from faults.hosts import NEEDED, some_hosts
from lockstep.system import memory_files
from processes import clean_environ, free_port, write_key
from support import assert_unsaid

PEER = PROGRAMS / "unauthenticated_peer.py"
OTHER_USER = 65534
TIMEOUT = 90

JOB = """
import lockstep, jax
import sys
jax.distributed.initialize(sys.argv[1], 2, 0, initialization_timeout=20)
print("collectives", jax.config.jax_cpu_collectives_implementation, flush=True)
jax.devices()
print("collectives", jax.config.jax_cpu_collectives_implementation, flush=True)
"""


def forged() -> str:
    """What a process without a key says of itself, on another host than the job's."""
    return json.dumps(dataclasses.asdict(dataclasses.replace(peer(1), host_id="another")))


def assert_refused(said: str) -> None:
    assert "DisagreementError" in said or "Unable to initialize backend" in said, said
    assert "without it: process 1 (pid 101 on b)" in said, said
    assert "an unauthenticated client writes into JAX's key-value store" in said
    assert_unsaid("collectives gloo", said)
    assert_unsaid("uses gloo", said)


@NEEDED
@pytest.mark.timeout(TIMEOUT + 30)
def test_a_peer_without_a_key_on_another_host_cannot_make_a_job_use_gloo(tmp_path: Path) -> None:
    """Process 1 is late, and a peer without the key takes its place in JAX's service."""
    with some_hosts(tmp_path, forked=True) as hosts:
        hosts.write_key(0)
        program = tmp_path / "job.py"
        program.write_text(JOB)
        job = hosts.launch(0, program, "10.9.0.1:29500", agent=False)
        intruder = hosts.launch(1, PEER, "10.9.0.1:29500", forged(), agent=False)
        status = job.wait(TIMEOUT)
        said = hosts.said(0)
        assert status not in (0, None), said
        if "connected" in hosts.said(1):  # newer versions of JAX refuse the connection
            assert_refused(said)
        assert_unsaid("uses gloo", said)
        intruder.kill()


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="to be another user takes root")
@pytest.mark.timeout(TIMEOUT + 30)
def test_another_user_of_this_machine_cannot_join(tmp_path: Path) -> None:
    key = write_key(tmp_path / "key")
    address = f"127.0.0.1:{free_port()}"
    environ = clean_environ(LOCKSTEP_KEY_FILE=str(key))
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    )
    intruder = subprocess.Popen(
        [sys.executable, str(PEER), address, forged(), str(OTHER_USER)],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environ(),
    )
    try:
        said, _ = job.communicate(timeout=TIMEOUT)
    finally:
        for process in (job, intruder):
            process.kill()
    joined, _ = intruder.communicate(timeout=10)
    assert job.returncode != 0, said
    if "connected" in joined:
        assert_refused(said)


# What the store gives as numbers of files


def memory_file(name: str) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(fd, b"secret")
    return fd


def test_only_the_memory_file_that_is_meant_is_opened(tmp_path: Path) -> None:
    ours, other = memory_file("lockstep-arena"), memory_file("something")
    foreign = os.open(tmp_path / "foreign", os.O_RDWR | os.O_CREAT)
    reading, writing = os.pipe()
    try:
        found = memory_files.open_of(os.getpid(), ours, ["lockstep-arena"], os.O_RDWR)
        assert os.pread(found, 6, 0) == b"secret"
        os.close(found)
        before = len(os.listdir("/proc/self/fd"))
        for fd in (other, foreign, reading, writing):
            with pytest.raises(PermissionError, match="not the memory file lockstep-arena of ours"):
                memory_files.open_of(os.getpid(), fd, ["lockstep-arena"], os.O_RDWR)
        for what in (f"{ours}", f"../../..{tmp_path}/foreign", -1, True, None, [ours], 1.0):
            with pytest.raises(OSError, match="not the number of a file descriptor"):
                memory_files.open_of(os.getpid(), what, ["lockstep-arena"], os.O_RDWR)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        for fd in (ours, other, foreign, reading, writing):
            os.close(fd)


@pytest.mark.skipif(os.getuid() != 0, reason="to be another user takes root")
def test_a_memory_file_of_another_user_is_refused() -> None:
    code = (
        f"import os, time; os.setuid({OTHER_USER}); fd = os.memfd_create('lockstep-arena');"
        "print(fd, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            fd = int(process.stdout.readline())
            with pytest.raises(PermissionError):
                memory_files.open_of(process.pid, fd, ["lockstep-arena"], os.O_RDWR)
        finally:
            process.kill()
