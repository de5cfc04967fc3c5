"""The host's agent in the network between hosts: a child for each attempt.

It answers the watchdogs of other hosts (`lockstep.watchdog.agent_network`), with an engine of its
own. A process has one engine in its life, and each attempt needs a new one; hence a child. Threads
and the engine stay out of the agent that way, too.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import NoReturn

from lockstep._config import Config
from lockstep._stderr import complain
from lockstep.system import fd_limit, process_tree


def start(line: socket.socket, run_dir: Path, config: Config) -> int:
    """Starts the child, which takes ``line`` over: to the first process of the host, whose settings
    are ``config``. Returns its pid; raises OSError."""
    pid = os.fork()
    if pid == 0:
        _serve(line, run_dir, config)
    line.close()
    return pid


def _serve(line: socket.socket, run_dir: Path, config: Config) -> NoReturn:
    try:
        process_tree.end_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the agent ends it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # `lockstep top` takes this process for one of the run by the directory that it holds.
        held = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
        fd_limit.close_all_but({line.fileno(), held})
        # The settings of the job, which this process reads as one of its processes would.
        for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
            del os.environ[name]
        os.environ.update(config.to_environ())
        from lockstep.watchdog.agent_network import AgentNetwork

        AgentNetwork(line, run_dir)
        while True:
            signal.pause()
    except BaseException as error:
        complain(f"the agent's engine: {error!r}")
    finally:
        os._exit(1)
