"""Process 1 leaves by sys.exit(), and its host stands still before process 0 waits for it."""

import atexit
import os
import pathlib
import signal
import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils


def stand_still():
    if leaves:
        for pid in os.getppid(), os.getpid():
            print("stopped", pid, flush=True)
        stopped.touch()
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)


leaves, stopped = False, pathlib.Path(sys.argv[1])
atexit.register(stand_still)  # before Lockstep's handler, so it runs after that
jax.distributed.initialize()
for step in range(100):
    if step == 5 and jax.process_index() == 1:
        leaves = True
        sys.exit(0)
    while step == 5 and not stopped.exists():
        time.sleep(0.05)
    multihost_utils.process_allgather(np.array([step]))
