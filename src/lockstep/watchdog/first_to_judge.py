"""Which watchdogs judge a death by the records of all processes. Pure.

One verdict ends the job for all, and the records of all processes come from every host. If each of
1,024 watchdogs asked for them, each host would send its records a thousand times, and the verdict
would be late. So the first few ask, and others wait for their verdict; if it does not come soon,
they judge by what is known on their own host.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.job.topology import Peer

FEW = 32
"""In a job of up to so many processes each asks all."""
FIRST = 4
"""So many of the host of the dead process ask all, and so many of the others."""
WAIT_SECONDS = 0.3
"""How long others wait. It is less than the engine waits for a reason (`kReasonGrace`)."""


def is_first(process: int, dead: int, peers: Sequence[Peer]) -> bool:
    """Whether ``process`` asks all why ``dead`` has ended: its host may be lost, so there are
    some of its host and some of others."""
    if len(peers) <= FEW:
        return True
    hosts = {peer.process: peer.host_id for peer in peers}
    is_here = hosts[process] == hosts[dead]
    lower = sum(
        other < process and other != dead and (host == hosts[dead]) == is_here
        for other, host in hosts.items()
    )
    return lower < FIRST
