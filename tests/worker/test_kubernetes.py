"""``lockstep worker`` with the variables and the /etc/hosts of pods, on two hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lockstep.system import process_tree
from processes import read_lines, write_key
from ssh_hosts import NEEDED, SshHosts, ssh_hosts

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(180),
    NEEDED,
]
DOMAIN = "train.default.svc.cluster.local"
PODS = ("train-0", "train-1")
SUM = r"""
import os, sys, time, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
while True:
    ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
    if os.environ["LOCKSTEP_ATTEMPT"] not in sys.argv[1:]:  # the attempts that go on
        break
    print("up", flush=True)
    time.sleep(0.05)
sys.stdout.write(f"sum {os.uname().nodename} {ranks.ravel().tolist()}\n")
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    write_key(tmp_path / "key", mode=0o400)
    with ssh_hosts(tmp_path, PODS) as made:
        for pod in PODS:
            # The kubelet writes a pod's own line. The other one stands for the name server.
            lines = [f"{made.address(pod)}\t{pod}.{DOMAIN}\t{pod}"]
            lines += [f"{made.address(each)} {each}.{DOMAIN}" for each in PODS if each != pod]
            made.replace(pod, Path("/etc/hosts"), "\n".join(["127.0.0.1 localhost", *lines, ""]))
        yield made


def start(
    hosts: SshHosts, pod: str, options: Sequence[str] = (), args: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    program = hosts.folder / "program.py"
    program.write_text(SUM)
    variables = {
        "HOSTNAME": pod,
        "JOB_COMPLETION_INDEX": str(PODS.index(pod)),
        "JOB_COMPLETIONS": "2",
        "LOCKSTEP_KEY_FILE": str(hosts.folder / "key"),
    }
    worker = [sys.executable, "-m", "lockstep", "worker", *options, str(program), *args]
    return hosts.start(pod, worker, variables)


def assert_sum(pod: str, process: subprocess.Popen[bytes]) -> str:
    """It has ended well; its stderr."""
    out, err = (text.decode() for text in process.communicate(timeout=120))
    assert process.returncode == 0, (out, err)
    assert re.findall(r"sum (\S+) (\[.*?\])", out) == [(pod, "[0, 1]")]
    assert "gloo" not in out + err
    return err


def test_pods_of_an_indexed_job(hosts: SshHosts) -> None:
    for pod, process in [(pod, start(hosts, pod)) for pod in PODS]:
        assert_sum(pod, process)
    hosts.assert_nothing_left()


def test_a_new_pod_in_the_place_of_one_that_was_evicted(hosts: SshHosts) -> None:
    stays, evicted = (start(hosts, pod, ["--max-restarts", "1"], ["0"]) for pod in PODS)
    read_lines(evicted, 1)
    process_tree.kill({*hosts.processes(PODS[1])})
    evicted.communicate(timeout=60)
    shutil.rmtree(hosts.folder / PODS[1] / "tmp")
    (hosts.folder / PODS[1] / "tmp").mkdir()
    new = start(hosts, PODS[1], ["--max-restarts", "1"], ["0"])
    said = assert_sum(PODS[0], stays)
    assert re.search(r"process 1 of 2 on \S+ failed first: its agent was lost$", said, re.M), said
    assert "attempt 0 has failed; starting again (1 restart left)" in said
    assert_sum(PODS[1], new)
    hosts.assert_nothing_left()
