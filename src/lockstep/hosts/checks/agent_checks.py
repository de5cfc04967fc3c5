"""The agent's side of the checks before a job starts: facts of its host, and probes of others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lockstep.bootstrap.endpoints import route_to
from lockstep.hosts.checks import facts, network_probe
from lockstep.system import tcp_ports

ANSWERS = {"facts": "facts", "listen": "listening", "probe": "probed", "deaf": "deafened"}
"""The messages that `AgentChecks.answer` takes, and the kind of the answer to each."""


class AgentChecks:
    """Holds the listener between the messages of a check."""

    def __init__(self) -> None:
        self._listener: network_probe.Listener | None = None

    def answer(self, kind: str, head: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the answer to a message of `ANSWERS`. Takes some seconds at most.

        - ``facts`` (``directory``, ``program``): see `facts.gather`.
        - ``listen`` (``name``, ``key``, ``address``, ``towards``, ``port``, ``peers``,
          ``seconds``): listens for probes of so many peers on ``address``, or, when that is empty,
          on the address from which this host sends to ``towards``. Answers ``address``, ``port``,
          ``problem``, and ``port_problem`` when the ``port`` asked for is not free (0: not asked).
        - ``probe`` (``peers``, ``key``, ``seconds``, ``measure``): answers ``results``
          (`network_probe.probe`), and how loaded this host was meanwhile: ``load``, the average
          number of runnable threads in the last minute, and ``cores``.
        - ``deaf``: ends listening.
        """
        if kind == "facts":
            return facts.gather(head)
        if kind == "listen":
            return self._listen(head)
        if kind == "probe":
            return _probe(head)
        self.close()
        return {}

    def _listen(self, head: Mapping[str, Any]) -> dict[str, Any]:
        self.close()
        address = str(head["address"]) or route_to(str(head["towards"]))
        if not address:
            why = (
                "ssh does not show by which of its addresses others reach it, and it has no route "
                f"to the name {head['towards']}"
            )
            return {"address": "", "port": 0, "problem": why}
        key = bytes.fromhex(str(head["key"]))
        peers, seconds = int(head["peers"]), float(head["seconds"])
        try:
            listener = network_probe.listen(address, backlog=network_probe.MAX_CLIENTS + peers)
            self._listener = network_probe.Listener(
                listener, str(head["name"]), key, clients=peers, seconds=seconds
            )
        except OSError as error:
            problem = error.strerror or str(error)
            return {"address": address, "port": 0, "problem": problem}
        wanted = int(head.get("port") or 0)
        return {
            "address": address,
            "port": self._listener.port,
            "problem": "",
            "port_problem": tcp_ports.problem(address, wanted, shared=False) if wanted else "",
        }

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _probe(head: Mapping[str, Any]) -> dict[str, Any]:
    key, measure = bytes.fromhex(str(head["key"])), bool(head.get("measure"))
    results = network_probe.probe(
        head["peers"], key, measure=measure, seconds=float(head["seconds"])
    )
    cores = len(os.sched_getaffinity(0))
    return {"results": results, "load": os.getloadavg()[0], "cores": cores}
