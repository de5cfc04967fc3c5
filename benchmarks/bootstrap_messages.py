"""What the records that processes exchange at the start cost: messages, bytes, process 0's time.

    python benchmarks/bootstrap_messages.py 16 64 256
    python benchmarks/bootstrap_messages.py --in-memory 1024

One process holds JAX's coordination service, and 16 others of this machine hold its clients, which
are real ones. Each client makes the exchanges of a start of Lockstep (`bootstrap.peers`, settings,
addresses, records), with records of the size that those have. Counted are the calls of a client and
the bytes of their answers; the processor time is that of the process with the service alone.
``--in-memory``: a thread for each process, and a dictionary in the place of the service.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import multiprocessing
import os
import resource
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lockstep.bootstrap import peers
from lockstep.job import job_key
from lockstep.job.kv_store import PREFIX
from lockstep.job.topology import Peer
from lockstep.system.port_reservation import reserve

_jax: Any = importlib.import_module("jaxlib._jax")
HOLDERS = 16
SECONDS = 300


class Counting:
    """A client of the service, and what it has asked for."""

    def __init__(self, client: Any) -> None:
        self._client, self.calls, self.bytes = client, 0, 0

    def key_value_set(self, name: str, record: str, **options: Any) -> None:
        self.calls += 1
        self._client.key_value_set(name, record, **options)

    def blocking_key_value_get(self, name: str, milliseconds: int) -> str:
        self.calls += 1
        found = self._client.blocking_key_value_get(name, milliseconds)
        self.bytes += len(found)
        return str(found)

    def key_value_dir_get(self, folder: str) -> Any:
        self.calls += 1
        found = self._client.key_value_dir_get(folder)
        self.bytes += sum(len(name) + len(value) for name, value in found)
        return found


def start(client: Counting, process: int, count: int) -> None:
    """The exchanges of one process; hosts of 16 processes each."""
    host = f"node{process // HOLDERS}"
    own = Peer(process, 4000 + process, f"{host}/4026531836/1000", host, tuple(range(64)))
    known = peers.exchange(client, own, job_key.JobKey(b"0" * 32), count)
    values = {
        "settings": {f"setting {i}": "a value of it" for i in range(20)},
        "addresses": [f"10.0.0.{process % 250}:{40000 + process % 9999}"],
        "records": {"ring": f"/dev/shm/lockstep-{process}", "sites": f"/tmp/run/{process}/sites"},
    }
    for name, value in values.items():

        def receive(other: int, at: str) -> Any:
            return known.store.get(at, f"process {other}", seconds=SECONDS)

        found = known.store.all_gather(f"{PREFIX}/{name}", process, count, value, receive)
        assert len(found) == count


def hold(first: int, count: int, address: str, told: Any) -> None:
    """The clients of one process of this machine: every `HOLDERS`-th."""

    def run(process: int) -> tuple[int, int, float]:
        client = _jax.get_distributed_runtime_client(
            address,
            process,
            init_timeout=SECONDS,
            heartbeat_timeout=SECONDS,
            shutdown_on_destruction=False,
        )
        client.connect()
        counting, began = Counting(client), time.monotonic()
        start(counting, process, count)
        clients.append(client)
        return counting.calls, counting.bytes, time.monotonic() - began

    clients: list[Any] = []
    own = range(first, count, HOLDERS)
    with ThreadPoolExecutor(len(own)) as pool:
        told.put(list(pool.map(run, own)))
    told.close()
    told.join_thread()
    os._exit(0)  # an end of each client is an exchange of its own


class Memory:
    """The calls of JAX's service that a start needs."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, str]] = collections.defaultdict(dict)
        self._there: dict[str, threading.Event] = collections.defaultdict(threading.Event)
        self._lock = threading.Lock()

    def key_value_set(self, name: str, record: str) -> None:
        with self._lock:
            self._folders[name.rpartition("/")[0]][name] = record
            there = self._there[name]
        there.set()

    def blocking_key_value_get(self, name: str, milliseconds: int) -> str:
        with self._lock:
            there = self._there[name]
        if not there.wait(milliseconds / 1000):
            raise RuntimeError(f"DEADLINE_EXCEEDED: {name}")
        return self._folders[name.rpartition("/")[0]][name]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._folders[folder.rstrip("/")].items())


def simulate(count: int) -> list[tuple[int, int, float]]:
    memory, began = Memory(), time.monotonic()

    def run(process: int) -> tuple[int, int, float]:
        counting = Counting(memory)
        start(counting, process, count)
        return counting.calls, counting.bytes, time.monotonic() - began

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def measure(count: int) -> tuple[list[tuple[int, int, float]], float]:
    with reserve() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        service = _jax.get_distributed_runtime_service(address, count, heartbeat_timeout=SECONDS)
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # of the clients that are gone without a word
    holders = [
        context.Process(target=hold, args=(first, count, address, told))
        for first in range(min(HOLDERS, count))
    ]
    for one in holders:
        one.start()
    before = resource.getrusage(resource.RUSAGE_SELF)
    rows = [row for _ in holders for row in told.get(timeout=SECONDS)]
    after = resource.getrusage(resource.RUSAGE_SELF)
    for one in holders:
        one.join(SECONDS)
    del service
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return rows, busy


def shown(count: int, rows: list[tuple[int, int, float]], busy: float) -> str:
    calls, sizes, seconds = zip(*rows, strict=True)
    return (
        f"{count} processes: {statistics.median(calls):.0f} calls each (at most {max(calls)}), "
        f"{sum(calls)} together; {statistics.median(sizes) / 1e6:.2f} MB each, "
        f"{sum(sizes) / 1e6:.0f} MB together; the service took {busy:.1f} s of processor time; "
        f"the last was there after {max(seconds):.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("processes", type=int, nargs="*", default=[16, 64, 256])
    parser.add_argument("--in-memory", action="store_true", help="a thread for each process")
    args = parser.parse_args()
    for count in args.processes:
        print(shown(count, *((simulate(count), 0) if args.in_memory else measure(count))))


if __name__ == "__main__":
    main()
