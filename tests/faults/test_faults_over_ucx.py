"""What the tests of two hosts ask of the engine over TCP, they ask of it over UCX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ucx
from faults.hosts import NEEDED, Hosts, some_hosts
from faults.test_between_hosts import (
    test_a_child_that_was_forked_does_not_hide_the_death_of_its_parent,
    test_a_correct_program_raises_nothing,
    test_a_fault_of_a_process_of_the_same_host_raises,
    test_a_fault_of_one_host_raises_on_the_other,
    test_a_fault_without_records_raises_all_the_same,
    test_a_process_that_died_is_reported_by_its_agent,
    test_a_program_that_drops_its_result_lets_the_others_have_theirs,
    test_a_second_job_in_the_same_processes_is_as_the_first,
    test_every_collective_is_right,
    test_every_collective_of_several_processes_a_host_is_right,
)
from lanes import needs

__all__ = [
    "test_a_child_that_was_forked_does_not_hide_the_death_of_its_parent",
    "test_a_correct_program_raises_nothing",
    "test_a_fault_of_a_process_of_the_same_host_raises",
    "test_a_fault_of_one_host_raises_on_the_other",
    "test_a_fault_without_records_raises_all_the_same",
    "test_a_process_that_died_is_reported_by_its_agent",
    "test_a_program_that_drops_its_result_lets_the_others_have_theirs",
    "test_a_second_job_in_the_same_processes_is_as_the_first",
    "test_every_collective_is_right",
    "test_every_collective_of_several_processes_a_host_is_right",
]

pytestmark = [
    pytest.mark.full,
    NEEDED,
    needs(ucx.is_here(), ucx.WHY),
]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with some_hosts(tmp_path, forked=True) as hosts:
        for host in range(2):
            hosts.write_key(host)
        hosts.variables.update(ucx.OVER_UCX)
        yield hosts
