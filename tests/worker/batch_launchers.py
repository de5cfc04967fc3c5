"""Stand-ins for LSF's blaunch and jsrun and for PBS's pbsdsh, which cannot be had for a test.

A stand-in starts the tasks of a job on this machine, waits for them and ends with the highest of
their exit statuses. The tasks get the variables that the real launcher gives them; their sources
are named in ``src/lockstep/bootstrap/cluster_env/``. Nothing else of a batch system is imitated.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NAMES = ("blaunch", "jsrun", "pbsdsh")
_OF_A_SESSION = ("HOME", "TMPDIR", "LOCKSTEP_ENGINE", "TEST_RUN_MARK")
_OF_A_JOB = ("PBS_JOBID", "PBS_NODEFILE", "PBS_O_WORKDIR")

Environ = Mapping[str, str]


def write(folder: Path) -> None:
    """Makes a command in ``folder`` for each launcher."""
    folder.mkdir()
    for name in NAMES:
        command = f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n'
        (folder / name).write_text(command)
        (folder / name).chmod(0o755)


def lsf_job(number: int, slots: int) -> dict[str, str]:
    """What LSF gives to the script of a job on this machine."""
    return {"LSB_JOBID": str(number), "LSB_HOSTS": " ".join(["localhost"] * slots)}


def pbs_job(number: int, slots: int, folder: Path) -> dict[str, str]:
    """What PBS gives to the script of a job on this machine that was submitted in ``folder``."""
    spool = folder / "spool"
    spool.mkdir()
    (spool / "nodes").write_text("localhost\n" * slots)
    return {
        "PBS_JOBID": f"{number}.server",
        "PBS_NODEFILE": str(spool / "nodes"),
        "PBS_O_WORKDIR": str(folder),
        "PBS_NODENUM": "0",
        "PBS_VNODENUM": "0",
        "PBS_TASKNUM": "1",
    }


def blaunch(words: Sequence[str], environ: Environ) -> tuple[Sequence[str], Sequence[Environ]]:
    """Without host names: one task for each slot, in the environment of the script."""
    slots = environ["LSB_HOSTS"].split()
    return words, [{**environ, "LSF_PM_TASKID": str(i + 1)} for i in range(len(slots))]


def jsrun(words: Sequence[str], environ: Environ) -> tuple[Sequence[str], Sequence[Environ]]:
    """``-n N``: N tasks in the environment of the script, here all on one host."""
    assert words[0] == "-n", words
    size = int(words[1])
    sizes = {"JSM_NAMESPACE_SIZE": words[1], "JSM_NAMESPACE_LOCAL_SIZE": words[1]}
    ranks = [
        {"JSM_NAMESPACE_RANK": str(i), "JSM_NAMESPACE_LOCAL_RANK": str(i)} for i in range(size)
    ]
    return words[2:], [{**environ, **sizes, **rank} for rank in ranks]


def pbsdsh(words: Sequence[str], environ: Environ) -> tuple[Sequence[str], Sequence[Environ]]:
    """TORQUE's: one task for each line of the file of hosts, and the task does not see that file.

    A task has the environment of a login, not that of the script: the ``PATH`` is the system's.
    """
    assert words[0] == "--", words
    nodes = Path(environ["PBS_NODEFILE"])
    slots = nodes.read_text().split()
    kept = {name: environ[name] for name in (*_OF_A_SESSION, *_OF_A_JOB) if name in environ}
    kept |= {"PATH": "/usr/bin:/bin", "PBS_NODENUM": "0"}
    nodes.unlink()  # as on the other hosts of a job
    tasks = [{**kept, "PBS_VNODENUM": str(i), "PBS_TASKNUM": str(i + 2)} for i in range(len(slots))]
    return words[1:], tasks


LAUNCHERS = {"blaunch": blaunch, "jsrun": jsrun, "pbsdsh": pbsdsh}


def main(name: str, *words: str) -> int:
    command, environs = LAUNCHERS[name](words, os.environ)
    tasks = [subprocess.Popen(command, env=environ) for environ in environs]
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    assert os.environ.get("TEST_RUN_MARK"), "only tests start this: they set the deadline"
    sys.exit(main(*sys.argv[1:]))
