"""``lockstep worker --max-restarts``: an agent joins its job, which starts again after a failure.

The job is that of `lockstep.launch.restarts`, with the same supervisor: it runs in a child of the
agent of process 0, and the agents of all processes connect to it (`lockstep.hosts.joined_agents`).
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import os
import platform
import signal
import socket
import time
from collections.abc import Callable

from lockstep import _run_files
from lockstep._config import Config
from lockstep._errors import ConfigError, InitializationError, LaunchError
from lockstep._stderr import complain
from lockstep.bootstrap import cluster_env, coordinator_address
from lockstep.hosts import joining
from lockstep.hosts.agent_attempts import AgentAttempts
from lockstep.hosts.checks import network_probe
from lockstep.hosts.joined_agents import JoinedAgents
from lockstep.hosts.node_range import NodeRange
from lockstep.hosts.worker_agent import WorkerAgent
from lockstep.job import job_key
from lockstep.launch import restarts
from lockstep.processes.guard import PASSED_ON
from lockstep.processes.host_dir import HostDir
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.program import GRACE
from lockstep.system import fd_limit, process_tree

_PAUSE_SECONDS = 0.2


def join(
    config: Config, shared: HostDir | None, name: str, args: argparse.Namespace
) -> WorkerAgent:
    """The agent of this process, connected to the supervisor of its job.

    ``shared`` is the directory of this host; ``name`` is that of the job. Raises `LockstepError`.
    """
    if config.run_dir or config.collectives == "mpi":
        other = "lockstep run" if config.run_dir else "the launcher of MPI"
        raise ConfigError(f"--max-restarts of lockstep worker: here {other} owns the processes.")
    if shared is None:
        raise LaunchError("--max-restarts needs a private directory on this host.")
    process, address = config.process_id, str(config.coordinator)
    key = _key(config, shared)
    job = LaunchSpec(
        program=(),
        processes=config.num_processes or 1,
        config=dataclasses.replace(config, attempt=0),
        environ={},
        run_dir=shared.path,
        grace=GRACE if args.grace is None else args.grace,
        max_restarts=args.max_restarts,
        agents_keep_records=True,
        grow=args.grow,
    )
    if process is None:
        connection, process = _joined(job, address, key, args.nnodes)
    else:
        name = f"restarts of {name}"
        if process == 0:
            start(job, address, name, key, args.nnodes, config.local_num_processes or 1)
        connection = reach(address, name, key, process, config.start_timeout)
    return WorkerAgent(connection, process, joining.same_on_all(args.nnodes), args.grace)


def reach(address: str, name: str, key: bytes, process: int, timeout: float) -> socket.socket:
    """Connects to the supervisor, which may still have to start.

    ``timeout``: after so many seconds it raises `LaunchError`; 0: never.
    """
    end = time.monotonic() + (timeout or float("inf"))

    def over(error: OSError, now: float) -> str:
        return (now > end) * (
            f"process {process} does not reach the agent of process 0 at {address} within "
            f"{timeout:g} s: {error}. Does it run, with --max-restarts and the same key "
            "(LOCKSTEP_KEY_FILE), and does a firewall let the port pass?"
        )

    while not (connection := _reach_once(address, name, key, over)):
        pass
    return connection


def _joined(
    job: LaunchSpec, address: str, key: bytes, nodes: NodeRange
) -> tuple[socket.socket, int | None]:
    """The connection of an agent without a number. On the host of ``address`` the first one has the
    supervisor, and number 0. Raises `LaunchError`."""
    is_local, process = coordinator_address.is_local(address), None
    wait = joining.Wait(address, is_local, job.config.start_timeout, time.monotonic())
    while True:
        if is_local and process is None and (listener := _listen_alone(address, job.processes)):
            _start(job, address, listener, joining.NAME, key, nodes, joins=True)
            process = 0
            complain(f"{platform.node()} begins the job at {address}, as node 0")
        if connection := _reach_once(address, joining.NAME, key, wait.over):
            return connection, process


def _reach_once(
    address: str, name: str, key: bytes, over: Callable[[OSError, float], str]
) -> socket.socket | None:
    """Tries to connect, and pauses after a failure; ``over`` says why that was the last try."""
    host, port = coordinator_address.split(address)
    try:
        return network_probe.connect(host, port, name, key, network_probe.CONNECT_SECONDS)
    except OSError as error:
        if why := over(error, time.monotonic()):
            raise LaunchError(why) from error
    time.sleep(_PAUSE_SECONDS)
    return None


def _listen_alone(address: str, backlog: int) -> socket.socket | None:
    """Listens on ``address``, of this host; None: there is a listener. Raises `LaunchError`.

    Of several agents that try at the same time one succeeds: the port is not shared.
    """
    host, port = _bound(address)
    try:
        return network_probe.listen(host, port, backlog, shared=False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise LaunchError(f"this host cannot listen on {address}: {error}") from error


def _key(config: Config, shared: HostDir) -> bytes:
    """The job's; empty where it has none. Raises `LaunchError` for a key file of no use."""
    file = job_key.read_key(config.key_file)
    if file.problem:
        raise LaunchError(f"{file.problem} {file.fix}")
    if file.key is None and config.local_num_processes == config.num_processes:
        file = job_key.read_key(str(shared.path / _run_files.SECRET))
    return job_key.derive(file.key, "restarts") if file.key else b""


# The supervisor, a child of the agent of process 0


def start(
    job: LaunchSpec,
    address: str,
    name: str,
    key: bytes,
    nodes: NodeRange | None = None,
    each: int = 1,
) -> None:
    """Starts the supervisor of ``job`` as a child, which ends with this process.

    ``nodes``: with how many nodes it runs, each with ``each`` processes; None: it needs all.
    Raises `LaunchError` where it cannot listen on ``address``, and `InitializationError` where it
    may not have enough descriptors.
    """
    bound, port = _bound(address)
    try:
        # `listen` shares a port with another listener of this user; two jobs must not.
        coordinator_address.wait_until_free(f"{cluster_env.bracketed(bound)}:{port}")
        listener = network_probe.listen(bound, port, job.processes)
    except (OSError, InitializationError) as error:
        raise LaunchError(
            f"--max-restarts: the agent of process 0 cannot listen on {address}: {error}. End the "
            "process that listens there (ss -ltnp shows it), or set LOCKSTEP_COORDINATOR=HOST:PORT "
            "on all processes."
        ) from error
    _start(job, address, listener, name, key, nodes, each)


def _bound(address: str) -> tuple[str, int]:
    """Where the supervisor listens."""
    _, port = coordinator_address.split(address)
    return coordinator_address.split(coordinator_address.choose(f"0.0.0.0:{port}", address))


def _start(
    job: LaunchSpec,
    address: str,
    listener: socket.socket,
    name: str,
    key: bytes,
    nodes: NodeRange | None,
    each: int = 1,
    joins: bool = False,
) -> None:
    # The child inherits the limit; here an error still ends the agent.
    fd_limit.make_room_for_agents(job.processes + network_probe.MAX_CLIENTS)
    hosts = (coordinator_address.split(address)[0], _bound(address)[0])
    if os.fork() != 0:
        listener.close()
        return
    status = 1
    try:
        process_tree.end_with_parent()
        fd_limit.close_all_but({listener.fileno()})
        _ignore_signals()
        agents = JoinedAgents(listener, job.processes, name, key, joining.same_on_all(nodes))
        _supervise(job, agents, AgentAttempts(agents, hosts, job, nodes, each, joins))
        # The agent reads the last message first, and then ends this process with it.
        signal.pause()
        status = 0
    except BaseException as error:
        complain(f"restarts: {error!r}")
    finally:
        os._exit(status)


def _ignore_signals() -> None:
    """The supervisor ends with its agent, and not by a signal to the agent's process group."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)


def _supervise(job: LaunchSpec, agents: JoinedAgents, attempts: AgentAttempts) -> None:
    lifeline, _ = os.pipe()  # it never ends: the kernel ends this process with the agent
    try:
        status = restarts.run(attempts.first(job), lifeline, attempts)
        how = "ended" if status == 0 else "failed, and does not start again"
        agents.end(f"the job has {how}", well=status == 0)
    except LaunchError as error:
        agents.end(str(error))
