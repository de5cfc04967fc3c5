"""Hosts that are agents of this machine alone: they are lost and come back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import textwrap
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from lockstep.system import process_tree
from own_address import own_address
from support import MARK, Result, Run, start_lockstep, wait_until, with_variables

WRAPPER = """#!/bin/bash
# In the place of ssh: the last words are a host's name and a command, which runs on this machine.
host="${{@: -2:1}}"
[ -e {folder}/down_$host ] && {{ echo "$host is down" >&2; exit 255; }}
[ -e {folder}/env_$host ] && source {folder}/env_$host
exec env LOCKSTEP_HOST_ID=$host SSH_CONNECTION="{address} 1 {address} 22" sh -c "${{@: -1}}"
"""
PROGRAM = """
import os, pathlib, signal, time
number, attempt = os.environ["LOCKSTEP_PROCESS_ID"], os.environ["LOCKSTEP_ATTEMPT"]
count, host = os.environ["LOCKSTEP_NUM_PROCESSES"], os.environ["LOCKSTEP_HOST_ID"]
folder = pathlib.Path({folder!r})
(folder / f"up_{{attempt}}_{{number}}_{{count}}_{{host}}_{{os.getppid()}}").touch()
while not (folder / f"end_{{attempt}}").exists():
    time.sleep(0.02)
"""

TRAINING = """
import os, pathlib, time
import jax, lockstep
jax.distributed.initialize()
attempt, me = os.environ["LOCKSTEP_ATTEMPT"], jax.process_index()
folder = pathlib.Path({folder!r})
saved = folder / "step"
first = int(saved.read_text()) if saved.exists() else 0
print("attempt", attempt, "begins at", first, "on", jax.process_count(), flush=True)
(folder / f"up_{{attempt}}_{{me}}_x_{{os.environ['LOCKSTEP_HOST_ID']}}_{{os.getppid()}}").touch()
step = first
while not (folder / f"end_{{attempt}}").exists():
    time.sleep(0.02)
    step += 1
    if lockstep.should_stop():
        print("saves", step, flush=True)
        if me == 0:
            saved.write_text(str(step))
        break
"""

CATCHES = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('noted', flush=True))"


class Hosts:
    """Agents of this machine as hosts, which can be killed and kept down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ssh = folder / "ssh"
        self.ssh.write_text(WRAPPER.format(folder=folder, address=own_address()))
        self.ssh.chmod(0o755)

    def start(self, *options: str, program: str = PROGRAM) -> AbstractContextManager[Run]:
        words = ["--ssh", str(self.ssh), "--grace", "1", *options]
        return start_lockstep(words, textwrap.dedent(program.format(folder=str(self.folder))))

    def ups(self, attempt: int) -> dict[int, tuple[str, int]]:
        """The host and the agent's pid of each process of an attempt, which has started them."""
        found = (path.name.split("_") for path in self.folder.glob(f"up_{attempt}_*"))
        return {int(number): (host, int(pid)) for _, _, number, _, host, pid in found}

    def wait_for(self, attempt: int, count: int) -> dict[int, tuple[str, int]]:
        what = f"{count} processes of attempt {attempt}"
        wait_until(lambda: len(self.ups(attempt)) == count, what, 60)
        return self.ups(attempt)

    def lose(self, agent: int, name: str, down: bool = True) -> None:
        """Kills an agent, and lets none start there if the host is to stay ``down``."""
        if down:
            (self.folder / f"down_{name}").touch()
        os.kill(agent, signal.SIGKILL)

    def back(self, name: str) -> None:
        (self.folder / f"down_{name}").unlink()

    def end(self, attempt: int) -> None:
        (self.folder / f"end_{attempt}").touch()

    def end_well(self, run: Run, attempt: int, leaves: bool = False) -> Result:
        """Lets an attempt end, with which the job ends well; ``leaves``: as for `Run.finish`."""
        self.end(attempt)
        result = run.finish(60, leaves=leaves)
        assert result.status == 0, result.stderr
        return result

    @contextlib.contextmanager
    def one_returns(
        self, grow: str = "", names: str = "ab", restarts: int = 1, program: str = PROGRAM
    ) -> Iterator[Run]:
        """A job with ``--grow``, whose host b was lost and is back in attempt 1."""
        count = len(names)
        options = ["--hosts", ",".join(names), "--min-hosts", str(count - 1)]
        options += ["--max-restarts", str(restarts), "--grow", *([grow] if grow else [])]
        with self.start(*options, program=program) as run:
            self.lose(self.wait_for(0, count)[1][1], "b")
            self.wait_for(1, count - 1)
            self.back("b")
            yield run


def agents_of(run: Run, name: str) -> set[int]:
    """The processes of a host that runs none of the job."""
    return with_variables(f"{MARK}={run.mark}", f"LOCKSTEP_HOST_ID={name}")


def kill_agents(run: Run, name: str) -> None:
    """Kills the agent of a host that runs none of the job, and its guard."""
    process_tree.kill(agents_of(run, name))


def read_until(run: Run, words: str) -> str:
    """What the launcher says, up to the line that has ``words``."""
    assert run.process.stderr is not None
    said, end = b"", time.monotonic() + 60
    while words.encode() not in said:
        left = max(0.0, end - time.monotonic())
        ready, _, _ = select.select([run.process.stderr], [], [], left)
        data = os.read(run.process.stderr.fileno(), 1 << 16) if ready else b""
        assert data, f"not said: {words}\n{said.decode()}"
        said += data
    return said.decode()


def ran(ups: dict[int, tuple[str, int]]) -> dict[int, str]:
    return {number: host for number, (host, _) in sorted(ups.items())}
