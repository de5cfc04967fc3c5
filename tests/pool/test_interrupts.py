"""A pool in a notebook of VS Code, whose interrupt goes to all processes below the kernel."""

from __future__ import annotations

import pytest

from processes import python

INTERRUPTED = """
import os, signal, threading, time, lockstep
from lockstep.system import process_tree
def interrupt():
    for pid in [*process_tree.below(os.getpid(), process_tree.parents()), os.getpid()]:
        os.kill(pid, signal.SIGINT)
pool = lockstep.Pool(n=2, devices=1)
pids = pool.run(os.getpid)
for work in (lambda: pool.run(time.sleep, (100,)), lambda: time.sleep(100)):
    threading.Timer(1.0, interrupt).start()
    try:
        work()
    except KeyboardInterrupt:
        print("interrupted", pool.run(os.getpid) == pids, flush=True)
pool.close()
"""


@pytest.mark.full
def test_vs_codes_interrupt_of_all_processes_leaves_them_to_the_pool() -> None:
    ended = python(INTERRUPTED, timeout=120)
    assert ended.stdout.splitlines() == ["interrupted True"] * 2, ended
    assert ended.status == 0, ended
