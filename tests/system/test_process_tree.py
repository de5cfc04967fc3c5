"""Every descendant is found and ended, also below a process that is ending itself."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

from lockstep.system import process_tree

ENDING = """
import ctypes, subprocess, threading, time

def work():
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(60)

threading.Thread(target=work).start()
time.sleep(0.2)
ctypes.CDLL(None).syscall({exit}, 0)  # ends this thread alone: the process becomes a zombie
"""
SUBREAPER = """
import os, subprocess, sys, time
from lockstep.system import process_tree

process_tree.adopt_orphans()
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child = int(program.stdout.readline())
deadline = time.monotonic() + 20
while process_tree.stat(program.pid)[0] != "Z" and time.monotonic() < deadline:
    time.sleep(0.01)
print(process_tree.stat(program.pid)[0], process_tree.descendants() == {program.pid, child})
process_tree.end_all()
print(os.path.exists(f"/proc/{child}") or os.path.exists(f"/proc/{program.pid}"))
"""
EXIT = {"x86_64": 60, "aarch64": 93}


def test_a_child_of_a_process_whose_main_thread_has_ended_is_found_and_ended() -> None:
    ending = textwrap.dedent(ENDING).replace("{exit}", str(EXIT[platform.machine()]))
    words = [sys.executable, "-c", SUBREAPER, ending]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=50, check=True)
    assert done.stdout.split() == ["Z", "True", "False"]


def test_ending_everything_without_a_child_returns_at_once() -> None:
    words = [sys.executable, "-c", "from lockstep.system.process_tree import end_all; end_all()"]
    subprocess.run(words, timeout=process_tree.REAP_SECONDS, check=True)
