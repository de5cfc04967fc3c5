"""Launches of programs that became one executable get one run id. Pure.

The run id of a launch is that of the module which the compiler was given. Processes may give it
modules that differ, of which it makes the same: an argument that lies on one device, say, where
another process has it on all. Then the launches are of one program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lockstep.flight_recorder.format import OPS, Op
from lockstep.flight_recorder.run_records import Process, Site


def unified(processes: Sequence[Process]) -> tuple[Process, ...]:
    """The processes, with the least of the run ids of each program."""
    groups: dict[int, set[int]] = {}
    """For each run id, the run ids of the same program."""
    first: dict[str, int] = {}
    for process in processes:
        for site in filter(_is_of_launch, process.sites):
            run_id = site.program
            one = groups.setdefault(run_id, {run_id})
            other = groups[first.setdefault(site.fingerprint, run_id)]
            if one is not other:
                one |= other
                groups.update(dict.fromkeys(one, one))
    least = {run_id: min(group) for run_id, group in groups.items()}
    if all(run_id == chosen for run_id, chosen in least.items()):
        return tuple(processes)
    return tuple(_renamed(process, least) for process in processes)


def _is_of_launch(site: Site) -> bool:
    return site.op == OPS[Op.PROGRAM]


def _renamed(process: Process, least: dict[int, int]) -> Process:
    sites = tuple(
        dataclasses.replace(site, program=least[site.program]) if _is_of_launch(site) else site
        for site in process.sites
    )
    if process.record is None:
        return dataclasses.replace(process, sites=sites)
    rings = tuple(
        dataclasses.replace(
            ring,
            entries=tuple(
                entry._replace(run_id=least.get(entry.run_id, entry.run_id))
                if entry.op == Op.PROGRAM
                else entry
                for entry in ring.entries
            ),
        )
        for ring in process.record.rings
    )
    record = dataclasses.replace(process.record, rings=rings)
    return dataclasses.replace(process, record=record, sites=sites)
