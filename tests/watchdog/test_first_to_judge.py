"""Who judges a death in a job of 1,024 processes on 64 hosts."""

from __future__ import annotations

import dataclasses

import pytest

from lockstep.job.topology import Peer, this_process
from lockstep.watchdog.first_to_judge import FEW, FIRST, is_first

COUNT, A_HOST = 1024, 16


def peers(count: int, a_host: int) -> list[Peer]:
    def peer(process: int) -> Peer:
        own = this_process(process, None, "", 0)
        return dataclasses.replace(own, host_id=f"node{process // a_host}")

    return [peer(process) for process in range(count)]


def first(dead: int, of: list[Peer]) -> set[int]:
    return {each for each in range(len(of)) if each != dead and is_first(each, dead, of)}


@pytest.mark.parametrize("dead", [0, 15, 16, 700, 1023])
def test_some_of_its_host_and_some_of_others_ask_all(dead: int) -> None:
    asking = first(dead, peers(COUNT, A_HOST))
    here = {each for each in asking if each // A_HOST == dead // A_HOST}
    assert (len(here), len(asking - here)) == (FIRST, FIRST)


def test_in_a_small_job_all_ask() -> None:
    assert first(3, peers(FEW, 4)) == set(range(FEW)) - {3}


def test_each_alone_on_its_host_leaves_some_to_ask() -> None:
    assert first(0, peers(COUNT, 1)) == set(range(1, 1 + FIRST))
