"""The messages of each algorithm between hosts, and a simulation that carries them out on sets.

A schedule is a list of rounds, a round a list of messages. A host's memory holds, for each block,
the set of the hosts whose data is in it, as bits. All messages of a round leave before any arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

Blocks = Sequence[int]


class Message(NamedTuple):
    source: int
    target: int
    blocks: Blocks
    adds: bool = False
    """Whether the target adds them to its own; else it keeps them."""


Schedule = list[list[Message]]
Memory = list[dict[int, int]]
"""Of each host: block -> bits of the hosts whose data is in it."""


def recursive_doubling(hosts: int) -> Schedule:
    power = 1 << (hosts.bit_length() - 1)
    pairs = hosts - power

    def host_of(member: int) -> int:
        return 2 * member if member < pairs else member + pairs

    odd = range(1, 2 * pairs, 2)
    rounds = [[Message(one, one - 1, [0], True) for one in odd]] if pairs else []
    distance = 1
    while distance < power:
        rounds.append([Message(host_of(m), host_of(m ^ distance), [0], True) for m in range(power)])
        distance *= 2
    return rounds + ([[Message(one - 1, one, [0]) for one in odd]] if pairs else [])


def halving_doubling(hosts: int) -> Schedule:
    down, up = [], []
    mine = [range(hosts)] * hosts
    distance = hosts // 2
    while distance:
        sent = []
        for host in range(hosts):
            half = len(mine[host]) // 2
            lower, upper = mine[host][:half], mine[host][half:]
            keeps, gives = (lower, upper) if host & distance == 0 else (upper, lower)
            mine[host] = keeps
            sent.append(Message(host, host ^ distance, gives, True))
        down.append(sent)
        up.append([Message(host, host ^ distance, mine[host]) for host in range(hosts)])
        distance //= 2
    return down + up[::-1]


def _others(hosts: int) -> Iterable[tuple[int, int]]:
    return ((one, (one + step) % hosts) for one in range(hosts) for step in range(1, hosts))


def direct(hosts: int) -> Schedule:
    return [*pairwise_reduce_scatter(hosts), *pairwise_all_gather(hosts)]


def ring(hosts: int) -> Schedule:
    def around(first: int, adds: bool) -> Schedule:
        return [
            [
                Message(host, (host + 1) % hosts, [(host + first - step) % hosts], adds)
                for host in range(hosts)
            ]
            for step in range(hosts - 1)
        ]

    return around(0, True) + around(1, False)


def bruck_all_gather(hosts: int) -> Schedule:
    rounds, distance = [], 1
    while distance < hosts:
        count = min(distance, hosts - distance)
        rounds.append(
            [
                Message(host, (host - distance) % hosts, [(host + i) % hosts for i in range(count)])
                for host in range(hosts)
            ]
        )
        distance *= 2
    return rounds


def pairwise_all_gather(hosts: int) -> Schedule:
    return [[Message(one, other, [one]) for one, other in _others(hosts)]]


def pairwise_reduce_scatter(hosts: int) -> Schedule:
    return [[Message(one, other, [other], True) for one, other in _others(hosts)]]


def bruck_all_to_all(hosts: int) -> Schedule:
    """Block s * hosts + t goes from s to t, t - s hosts on."""
    rounds, distance = [], 1
    while distance < hosts:
        sent = []
        for host in range(hosts):
            blocks = []
            for index in range(distance, hosts):
                if index & distance:
                    source = (host - (index & (distance - 1))) % hosts
                    blocks.append(source * hosts + (source + index) % hosts)
            sent.append(Message(host, (host + distance) % hosts, blocks))
        rounds.append(sent)
        distance *= 2
    return rounds


def pairwise_all_to_all(hosts: int) -> Schedule:
    return [[Message(one, other, [one * hosts + other]) for one, other in _others(hosts)]]


def permute(hosts: int) -> Schedule:
    return [[Message(one, (one + 1) % hosts, [one]) for one in range(hosts)]]


SCHEDULES: dict[tuple[str, str], Callable[[int], Schedule]] = {
    ("all-reduce", "recursive-doubling"): recursive_doubling,
    ("all-reduce", "halving-doubling"): halving_doubling,
    ("all-reduce", "direct"): direct,
    ("all-reduce", "ring"): ring,
    ("all-gather", "bruck"): bruck_all_gather,
    ("all-gather", "pairwise"): pairwise_all_gather,
    ("reduce-scatter", "recursive-doubling"): recursive_doubling,
    ("reduce-scatter", "pairwise"): pairwise_reduce_scatter,
    ("all-to-all", "bruck"): bruck_all_to_all,
    ("all-to-all", "pairwise"): pairwise_all_to_all,
    ("collective-permute", "pairwise"): permute,
}


def blocks_of_vector(schedule: Schedule) -> int:
    """Into how many blocks a reduction cuts its vector."""
    return 1 + max(block for sent in schedule for message in sent for block in message.blocks)


def start(op: str, hosts: int, blocks: int) -> Memory:
    """What each host has before the collective."""
    if op in ("all-reduce", "reduce-scatter"):
        return [dict.fromkeys(range(blocks), 1 << host) for host in range(hosts)]
    if op == "all-to-all":
        rows = [range(host * hosts, (host + 1) * hosts) for host in range(hosts)]
        return [dict.fromkeys(row, 1 << host) for host, row in enumerate(rows)]
    return [{host: 1 << host} for host in range(hosts)]


def carry_out(schedule: Schedule, memory: Memory) -> None:
    """Raises AssertionError where data is counted twice, or where a host sends what it lacks."""
    for sent in schedule:
        carried = [(m, [(block, memory[m.source][block]) for block in m.blocks]) for m in sent]
        for message, contents in carried:
            own = memory[message.target]
            for block, bits in contents:
                if message.adds:
                    assert own[block] & bits == 0, f"{message}: data is added twice"
                    own[block] |= bits
                else:
                    own[block] = bits


def check(op: str, hosts: int, blocks: int, memory: Memory) -> None:
    """Raises AssertionError unless each host has what the collective promises."""
    every = (1 << hosts) - 1
    for host, own in enumerate(memory):
        if op == "all-reduce":
            assert all(own[block] == every for block in range(blocks)), host
        elif op == "reduce-scatter":
            assert own[host if blocks > 1 else 0] == every, host
        elif op == "all-gather":
            assert own == {block: 1 << block for block in range(hosts)}, host
        elif op == "all-to-all":
            assert all(own[one * hosts + host] == 1 << one for one in range(hosts)), host
        else:
            assert own[(host - 1) % hosts] == 1 << (host - 1) % hosts, host


def carried_out(op: str, name: str, hosts: int) -> Schedule:
    """The schedule of an algorithm. Raises AssertionError where its results are wrong."""
    schedule = SCHEDULES[op, name](hosts)
    blocks = blocks_of_vector(schedule)
    memory = start(op, hosts, blocks)
    carry_out(schedule, memory)
    check(op, hosts, blocks, memory)
    return schedule


class Tally(NamedTuple):
    """Counts of a schedule: `lockstep.inspection.algorithms.Counts`, with blocks for bytes; and the
    most that one host sends in all rounds."""

    rounds: int
    messages: int
    blocks: int
    added: int
    most_messages: int
    most_peers: int


def tally(schedule: Schedule) -> Tally:
    messages = blocks = added = 0
    all_messages: Counter[int] = Counter()
    peers: dict[int, set[int]] = {}
    for sent in schedule:
        number, outgoing, incoming, sums = Counter(), Counter(), Counter(), Counter()
        for message in sent:
            number[message.source] += 1
            outgoing[message.source] += len(message.blocks)
            incoming[message.target] += len(message.blocks)
            sums[message.target] += len(message.blocks) * message.adds
            peers.setdefault(message.source, set()).add(message.target)
            peers.setdefault(message.target, set()).add(message.source)
        messages += max(number.values())
        blocks += max(*outgoing.values(), *incoming.values())
        added += max(sums.values())
        all_messages += number
    most = max(all_messages.values())
    return Tally(len(schedule), messages, blocks, added, most, max(map(len, peers.values())))
