"""How much of the hosts' time a long run loses to failures, with and without spares: a model.

    python scripts/lost_time_model.py

prints the tables of docs/design/lost-time.md, which states the assumptions. Nothing here is
measured; the default times of a restart are those of one measured run.

While a job computes, its hosts fail at the rate ``hosts / mtbf``. Each failure costs the time until
the program steps again, and the work since the last checkpoint: half an interval in the mean. So an
hour of useful work takes ``1 + save / interval + rate * cost`` hours. The interval is Young's,
``sqrt(2 * save / rate)``, for which saving and repeating cost the same.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
"""

from __future__ import annotations

import dataclasses
import math

HOUR = 3600.0
HOSTS = (8, 32, 128, 512, 1024)


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Times in seconds."""

    mtbf: float = 5000 * HOUR
    """Mean time between failures of one host."""
    repair: float = 4 * HOUR
    """Mean time until a lost host answers again."""
    detect: float = 10.0
    """Until the launcher notices a silent host: `lockstep.hosts.lease.SILENCE_SECONDS`."""
    end: float = 1.5
    """Until all processes have ended, and the failure is reported."""
    reach: float = 10.0
    """Until a lost host is given up where no spare takes its place: ``--reach-timeout``."""
    start: float = 60.0
    """From the start of the processes to the first new step: imports, compilation, checkpoint."""
    save: float = 30.0
    """For one checkpoint."""
    run: float = 7 * 24 * HOUR
    """The length of the run, over which a job that only shrinks loses hosts."""


def interval(hosts: int, own: Assumptions) -> float:
    """Young's interval between checkpoints."""
    return math.sqrt(2 * own.save * own.mtbf / hosts)


def spares_needed(hosts: int, own: Assumptions, shortage: float = 0.01) -> int:
    """The fewest spares, at least one, of which none is left for at most this share of time.

    The hosts in repair are Poisson distributed, as in a queue with a server for each.
    """
    spares = 1
    while _more_in_repair(spares - 1, hosts, own) > shortage:
        spares += 1
    return spares


def _more_in_repair(number: int, hosts: int, own: Assumptions) -> float:
    """The probability that more than ``number`` hosts are in repair."""
    mean = hosts * own.repair / own.mtbf
    return 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(number + 1))


def _lost(hosts: int, own: Assumptions, cost: float) -> float:
    """The share of time that is lost where each failure costs ``cost`` seconds and the rework."""
    every = interval(hosts, own)
    rate = hosts / own.mtbf
    return 1 - 1 / (1 + own.save / every + rate * (cost + every / 2))


def waits(hosts: int, own: Assumptions) -> float:
    """The job needs all its hosts and has no spares: it starts again after each repair."""
    return _lost(hosts, own, own.detect + own.end + own.repair + own.start)


def with_spares(hosts: int, spares: int, own: Assumptions) -> float:
    """``--spares``: the job has its size always. Where no spare is left it ends, and starts again
    after the next repair. The share is that of all hosts, the spares included."""
    shortage = _more_in_repair(spares - 1, hosts, own)
    wait = shortage * own.repair / (spares + 1)
    lost = _lost(hosts, own, own.detect + own.end + wait + own.start)
    return 1 - (1 - lost) * hosts / (hosts + spares)


def shrinks(hosts: int, own: Assumptions) -> float:
    """``--min-hosts``: a lost host is missing to the end of the run, which is half of the run in
    the mean."""
    lost = _lost(hosts, own, own.detect + own.end + own.reach + own.start)
    return 1 - (1 - lost) * (1 - own.run / own.mtbf / 2)


def grows(hosts: int, own: Assumptions) -> float:
    """``--min-hosts --grow``: a host is missing until it is repaired, and each return costs another
    start, before which the program saves."""
    again = own.save + own.end + own.start
    lost = _lost(hosts, own, own.detect + own.end + own.reach + own.start + again)
    return 1 - (1 - lost) * (1 - own.repair / own.mtbf)


def table(own: Assumptions) -> str:
    """The lost share of all host hours by the number of hosts, as Markdown."""
    times = "hosts | a failure every | checkpoint every"
    lines = [f"| {times} | waits | spares | with them | shrinks | grows |", "|---" * 8 + "|"]
    for hosts in HOSTS:
        spares = spares_needed(hosts, own)
        shares = [
            waits(hosts, own),
            with_spares(hosts, spares, own),
            shrinks(hosts, own),
            grows(hosts, own),
        ]
        first, *others = (f"{100 * each:.1f}%" for each in shares)
        hours = own.mtbf / hosts / HOUR
        minutes = interval(hosts, own) / 60
        row = [str(hosts), f"{hours:.1f} h", f"{minutes:.0f} min", first, str(spares), *others]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    for hours in (1000, 5000, 20000):
        print(f"\nEach host fails every {hours:,} h in the mean:\n")
        print(table(dataclasses.replace(Assumptions(), mtbf=hours * HOUR)))


if __name__ == "__main__":
    main()
