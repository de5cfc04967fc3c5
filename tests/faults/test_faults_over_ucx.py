"""What the tests of two hosts ask of the engine over TCP, they ask of it over UCX."""

from __future__ import annotations

import pytest

import ucx
from faults import test_between_hosts
from faults.hosts import NEEDED
from lanes import needs

VARIABLES = ucx.OVER_UCX
OVER_TCP_ALONE = {
    "test_a_death_without_an_agent_is_reported_by_another_process_of_the_host",
    "test_a_program_outlives_its_agent",
    "test_an_engine_that_does_not_start_is_reported",
    "test_another_line_is_reported_between_hosts_too",
    "test_without_agents_a_process_that_died_alone_on_its_host_is_gone",
}
globals().update(
    (name, each)
    for name, each in vars(test_between_hosts).items()
    if name.startswith("test_") and name not in OVER_TCP_ALONE
)
pytestmark = [
    pytest.mark.full,
    NEEDED,
    needs(ucx.is_here(), ucx.WHY),
]
