"""Hosts without a problem, for tests that change one thing of one of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from lockstep.hosts.checks.address_choice import Choice
from lockstep.hosts.checks.request import HostState, Request

REQUEST = Request(
    directory="/work",
    program=("train.py",),
    ssh="ssh",
    python="/venv/bin/python",
    version="1.2.0",
)
FACTS: dict[str, Any] = {
    "host_name": "node",
    "resolves": ["10.0.0.1"],
    "python": "3.12.4",
    "executable": "/venv/bin/python",
    "machine": "x86_64",
    "versions": {"lockstep": "1.2.0", "jax": "0.11.1", "jaxlib": "0.11.1"},
    "directory_problem": "",
    "program": {"path": "/work/train.py", "sha256": "aa", "problem": ""},
    "reached_at": "10.0.0.1",
    "memory": 64 << 30,
    "run_dir": {"path": "/tmp", "free": 1 << 40, "problem": ""},
    "open_files": 1 << 20,
    "time": 0.0,
}


def state(number: int, names: str = "abc", **facts: Any) -> HostState:
    """Host ``number`` of ``names``, with these facts changed; it reaches all others."""
    address = f"10.0.0.{number + 1}"
    interfaces = [
        {"name": "lo", "address": "127.0.0.1", "prefix": 8},
        {"name": "eth0", "address": address, "prefix": 24},
    ]
    reached = {"reason": "", "detail": "", "latency": 1e-4}
    return HostState(
        label=names[number],
        name=names[number],
        facts={**FACTS, "interfaces": interfaces, **facts},
        choice=Choice(address),
        listening={"address": address, "port": 40000, "problem": "", "port_problem": ""},
        probed={name: reached for name in names if name != names[number]},
    )


def states(names: str = "abc") -> list[HostState]:
    return [state(number, names) for number in range(len(names))]


def failing(host: HostState, other: str, reason: str, detail: str = "") -> HostState:
    """``host``, which does not reach ``other``."""
    probed = {**host.probed, other: {"reason": reason, "detail": detail}}
    return dataclasses.replace(host, probed=probed)
