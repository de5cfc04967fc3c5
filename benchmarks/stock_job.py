"""Runs a program on several processes of stock JAX over gloo, without Lockstep.

    python benchmarks/stock_job.py 2 program.py [arguments]

A process has one device, or as many as ``JAX_NUM_CPU_DEVICES`` says. The program calls
``jax.distributed.initialize()`` without arguments, which it gets here, since no launcher sets them.
Each line of output has its process in front, as under ``lockstep run``; at the end a line for each
process that has failed says how, and the exit status is 1.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

PROCESS = """
import os, runpy, sys
import jax
assert "lockstep" not in sys.modules
join = jax.distributed.initialize
address, count, process = os.environ["STOCK_JOB"].split()
jax.distributed.initialize = lambda **options: join(address, int(count), int(process), **options)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_printing = threading.Lock()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def limited_connections(bytes_per_second: int, folder: Path) -> dict[str, str]:
    """The variables that limit each connection of a process."""
    library = folder / "limited_connections.so"
    source = Path(__file__).with_name("limited_connections.c")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "CONNECTION_BYTES_PER_SECOND": str(bytes_per_second)}


def start(
    place: str, program: list[str], python: str = sys.executable, **more: str
) -> subprocess.Popen[str]:
    """One process of a job; ``more`` are variables for it alone."""
    variables = {
        "STOCK_JOB": place,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": os.environ.get("JAX_NUM_CPU_DEVICES", "1"),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    return subprocess.Popen(
        [python, "-c", PROCESS, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **variables, **more},
    )


def forward(process: int, output: IO[str]) -> None:
    for line in output:
        with _printing:
            print(f"[{process}] {line}", end="", flush=True)


def main() -> None:
    count, program = int(sys.argv[1]), sys.argv[2:]
    address = f"127.0.0.1:{free_port()}"
    processes = [start(f"{address} {count} {process}", program) for process in range(count)]
    readers = []
    for process, running in enumerate(processes):
        assert running.stdout is not None
        readers.append(threading.Thread(target=forward, args=(process, running.stdout)))
        readers[-1].start()
    for reader in readers:
        reader.join()
    codes = [running.wait() for running in processes]
    for process, code in enumerate(codes):
        if code:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            print(f"process {process} failed: {how}", flush=True)
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
