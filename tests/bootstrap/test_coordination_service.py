"""JAX's coordination service: which processes reach it, and what happens without it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import lockstep
from lanes import full, sample
from lockstep.bootstrap import service_loss
from lockstep.job import current_job
from lockstep.system import tcp_ports
from of_this_jax import MUTUAL_TLS
from processes import free_port, python, write_key
from support import run_lockstep, wait_until

LISTENS = """
import os, subprocess, sys
import jax, jax.numpy as jnp
jax.distributed.initialize()
port = int(os.environ["LOCKSTEP_COORDINATOR"].rpartition(":")[2])
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/self/net/{name}").readlines()[1:]:
        address, _, number = line.split()[1].rpartition(":")
        if line.split()[3] == "0A" and int(number, 16) == port:
            print("listens", address)
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(jnp.ones(jax.local_device_count()))
print("sum", float(total[0]))
if jax.process_index() == 0 and HAS_TLS:
    outsider = '''
import os, sys
from jaxlib import _jax
client = _jax.get_distributed_runtime_client(sys.argv[1], 1, init_timeout=2, use_compression=True)
client.connect()
print("read", client.key_value_dir_get("lockstep/"), flush=True)
'''
    coordinator = os.environ["LOCKSTEP_COORDINATOR"]
    command = [sys.executable, "-c", outsider, coordinator]
    print("outsider", subprocess.run(command, capture_output=True, text=True, timeout=50).stdout)
from lockstep import _jax_compat
_jax_compat.distributed_client().wait_at_barrier("end", 60_000)
"""


def test_the_service_listens_on_loopback_and_refuses_peers_without_the_key(tmp_path: Path) -> None:
    env = {"LOCKSTEP_KEY_FILE": str(write_key(tmp_path / "key"))}
    result = run_lockstep(
        [], f"HAS_TLS = {MUTUAL_TLS}\n{LISTENS}", env=env, timeout=100, forked=True
    )
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    for process in (0, 1):
        lines = result.by_process[process]
        found = {line.split()[1] for line in lines if line.startswith("listens")}
        assert found, result
        assert found <= loopback, result
        assert "sum 2.0" in lines, result
    if MUTUAL_TLS:
        assert "outsider" in result.stdout, result
        assert "read" not in result.stdout


@pytest.mark.full
def test_a_port_that_is_taken_is_an_error_that_names_its_holder() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = python(f"import lockstep, jax; jax.distributed.initialize({address!r}, 2, 0)")
    assert ended.status == 1, ended
    last = ended.stderr.strip().splitlines()[-1]
    assert f"cannot listen on {address}: the port is taken by process {os.getpid()}" in last, ended
    assert "If that is a process of this job, two claim to be process 0: it and this one" in last


@sample(
    ("present", "words"),
    [
        (0, ["process 1, process 2 did not join the job of 3 processes within 2 s"]),
        (1, ["process 0 did not start JAX's coordination service", "Connection refused"]),
    ],
    0,
)
def test_processes_that_never_start_are_named(present: int, words: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    program = f"""
import lockstep, jax
try:
    jax.distributed.initialize({address!r}, 3, {present})
except lockstep.InitializationError as error:
    print(error)
print("lives")
"""
    ended = python(program, env={"LOCKSTEP_START_TIMEOUT": "2"})
    assert ended.status == 0, ended
    assert "lives" in ended.stdout, ended
    for each in [*words, "--start-timeout"]:
        assert each in ended.stdout, ended


def start(address: str, process: int, more: str = "") -> subprocess.Popen[str]:
    """A process that joins a job of 3 as ``process``, with no launcher."""
    program = f"import lockstep, jax\njax.distributed.initialize({address!r}, 3, {process}{more})"
    environ = {**os.environ, "LOCKSTEP_START_TIMEOUT": "60", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)


def wait_for_clients(address: str, count: int) -> None:
    port = int(address.rpartition(":")[2])
    wait_until(lambda: tcp_ports.established(port) >= count, "the processes connect", 30)


# A service elsewhere, as a second process 0 on another host starts it.
@pytest.mark.full
@pytest.mark.parametrize(("process", "more"), [full(1, ""), (0, ", coordinator_bind_address='{}'")])
def test_two_processes_with_one_number_are_named(process: int, more: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as ended:
        first = ended.enter_context(start(address, 0))
        ended.callback(first.kill)
        wait_for_clients(address, 1)
        if process == 1:
            first = ended.enter_context(start(address, 1))
            ended.callback(first.kill)
            wait_for_clients(address, 2)
        began = time.monotonic()
        other = more.format(f"127.0.0.2:{free_port()}")
        second = ended.enter_context(start(address, process, other))
        ended.callback(second.kill)
        last = first.communicate(timeout=60)[1].strip().splitlines()
    assert time.monotonic() - began < 40
    assert "bad_cast" not in "".join(last)
    assert "within 60 s" not in last[-1]
    assert f"process {process} of 3" in last[-1]
    assert f"pid {first.pid} on {socket.gethostname()}" in last[-1]
    assert f"process {second.pid} ({sys.executable} -c import lockstep" in last[-1]
    assert "Give each process its own number: process_id" in last[-1]


def test_a_process_that_joins_no_job_is_named_with_its_end() -> None:
    program = """
import os, sys
if os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    sys.exit(0)
import jax
jax.distributed.initialize()
"""
    result = run_lockstep(["--start-timeout", "2"], program, expect_status=1, forked=True)
    assert "process 1 (which ended (exit code 0)) did not join the job" in str(result), result


KILLED = """
import os, pathlib, sys, time
import lockstep, jax, jax.numpy as jnp
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")
ones = jnp.ones(jax.local_device_count())
try:
    for step in range(10**6):
        total(ones).block_until_ready()
        if step == 10 and jax.process_index() == 0:
            run = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0")
            os.kill(int((run / "coordination.pid").read_text()), 9)
except Exception as error:
    print("caught", str(error).replace(chr(10), " "), flush=True)
try:
    lockstep.barrier("after")
except lockstep.InitializationError as error:
    print("no barrier", flush=True)
time.sleep(2)  # JAX aborts a process within a second
print("saved", float(jnp.ones(10).sum()), flush=True)
sys.exit(40)
"""


def test_a_service_that_is_killed_is_an_exception_in_every_process() -> None:
    result = run_lockstep(["--grace", "30"], KILLED, timeout=100, expect_status=40, forked=True)
    for process in (0, 1):
        lines = result.by_process[process]
        caught = [line for line in lines if line.startswith("caught")]
        assert caught, result
        assert "has lost JAX's coordination service at 127.0.0.1:" in caught[0], result
        assert lines[-2:] == ["no barrier", "saved 10.0"], result


@pytest.mark.full
def test_a_service_that_process_0_has_left_takes_no_process_of_the_next_job() -> None:
    """It goes on serving those that are connected."""
    program = """
import os, time
import lockstep, jax
from lockstep import _jax_compat
from lockstep.system.tcp_ports import taken
jax.distributed.initialize()
port = int(os.environ["LOCKSTEP_COORDINATOR"].rpartition(":")[2])
lockstep.barrier("all have met")
print("listens", bool(taken("0.0.0.0", port)))
lockstep.barrier("all have looked")
if jax.process_index() == 0:
    jax.distributed.shutdown()
    raise SystemExit
end = time.monotonic() + 20
while taken("0.0.0.0", port) and time.monotonic() < end:
    time.sleep(0.05)
print("listens", bool(taken("0.0.0.0", port)))
client = _jax_compat.distributed_client()
client.key_value_set("left", "behind")
print(client.blocking_key_value_get("left", 10_000))
"""
    result = run_lockstep([], program, forked=True)
    assert result.by_process[0] == ["listens True"], result
    assert result.by_process[1] == ["listens True", "listens False", "behind"], result


@pytest.mark.full
def test_a_wait_for_a_service_that_is_killed_ends() -> None:
    program = """
import os, pathlib, time
import lockstep, jax
jax.distributed.initialize()
lockstep.barrier("begin")
if jax.process_index() == 0:
    time.sleep(1)  # process 1 waits by then
    run = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0")
    os.kill(int((run / "coordination.pid").read_text()), 9)
    time.sleep(1)
try:
    lockstep.barrier("end")
except lockstep.InitializationError as error:
    print(error)
"""
    result = run_lockstep([], program, forked=True)
    for process in (0, 1):
        assert "has lost JAX's coordination service" in result.by_process[process][0], result


def test_a_call_that_fails_before_the_loss_is_reported_names_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_loss._jax_compat, "distributed_client", lambda: object())
    monkeypatch.setattr(service_loss._jax_compat, "set_client_aside", lambda: None)
    monkeypatch.setattr(service_loss, "_words", lambda labels: "the service is lost")
    reports = threading.Timer(0.2, service_loss.react, [lambda count: ["process 0"] * count])
    reports.start()
    try:
        lost = pytest.raises(lockstep.InitializationError, match="the service is lost")
        with lost, service_loss.as_reason():
            raise RuntimeError("UNAVAILABLE: recvmsg:Connection reset by peer")
    finally:
        reports.join()
        current_job.end()


def test_another_error_is_raised_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="INTERNAL: no"), service_loss.as_reason():
        raise RuntimeError("INTERNAL: no")


@pytest.mark.full
def test_processes_with_different_numbers_of_devices_are_shown_in_a_table() -> None:
    program = """
import os
os.environ["JAX_NUM_CPU_DEVICES"] = str(1 + int(os.environ["LOCKSTEP_PROCESS_ID"]))
import jax
jax.distributed.initialize()
print(len(jax.devices()))
"""
    result = run_lockstep([], program)
    assert result.by_process == {0: ["3"], 1: ["3"]}
    said = "\n".join(result.stderr_by_process[0])
    assert "warning: the processes of this job differ in local CPU devices" in said, result
    assert "  0        1" in said, result
    assert "  1        2" in said, result
    assert 1 not in result.stderr_by_process or "warning" not in "\n".join(
        result.stderr_by_process[1]
    )


def test_a_failure_names_a_difference_of_settings_as_the_likely_cause() -> None:
    program = """
import os
if os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np
jax.distributed.initialize()
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
np.zeros(len(jax.devices())).reshape(2, jax.local_device_count())
"""
    said = run_lockstep([], program, expect_status=1, forked=True).said_by_launcher
    first, second, *rest, last = said.splitlines()
    assert "failed first: ValueError: cannot reshape array of size 5 into shape (2," in first, said
    assert second == (
        "    Likely: the processes differ in local CPU devices (1 on process 0, 4 on process 1): "
        "see the table above."
    )
    assert "Likely" not in "\n".join(rest), said
    assert ". Likely: the processes differ in local CPU devices (1 on process 0, 4" in last, said
