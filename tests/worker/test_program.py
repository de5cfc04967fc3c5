"""The program as a child of its agent, and the signals that it gets."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import captured

AGENT = r"""
import os, signal, sys
from pathlib import Path
from lockstep.hosts.worker_agent import WorkerAgent
from lockstep.processes.program import Program, block_signals

folder, program = Path(sys.argv[1]), sys.argv[2]


class Agent(WorkerAgent):
    # Another program has failed meanwhile.
    def turn(self, longest):
        super().turn(min(longest, 0.05))
        if (folder / "saves").exists() and not (folder / "sent").exists():
            self.on_signal(signal.SIGINT)
            self.on_signal(signal.SIGKILL)
            (folder / "sent").touch()
        if (folder / "runs").exists() and not (folder / "asked").exists():
            (folder / "asked").touch()
            os.kill(os.getpid(), signal.SIGTERM)


agent = Agent(grace=60.0)
handled, blocked = block_signals()
agent.listen(handled)
command = [sys.executable, "-c", program, str(folder)]
found = Program(command, os.environ, blocked, folder, -1, False)
print(agent.wait_for_end(found), found.was_stopped, found.asked_to_end, found.was_killed)
"""
SAVES = r"""
import signal, sys, time
from pathlib import Path

folder = Path(sys.argv[1])


def save(number, frame):
    (folder / "saves").touch()
    while not (folder / "sent").exists():
        time.sleep(0.01)
    time.sleep(0.5)  # the signals, if there are any, come in this time
    (folder / "saved").touch()
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
(folder / "runs").touch()
time.sleep(60)
"""


def test_a_program_that_saves_after_sigterm_gets_no_signal_of_the_supervisor(
    tmp_path: Path,
) -> None:
    """The grace period after a failure is shorter than that after SIGTERM."""
    done = captured([sys.executable, "-c", AGENT, str(tmp_path), SAVES])
    assert done.stdout.split() == ["0", "True", "True", "False"], done
    assert (tmp_path / "saved").exists()
