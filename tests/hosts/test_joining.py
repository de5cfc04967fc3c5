"""What hosts get that join a job without a number, and what is said of those that may not."""

from __future__ import annotations

import errno

import pytest

from lockstep._config import Config
from lockstep._errors import LaunchError
from lockstep.hosts import joining
from lockstep.hosts.joining import Numbers, Wait
from lockstep.hosts.node_range import NodeRange

NODES = NodeRange(1, 2)
HAS_ADDRESS = Config(coordinator="node1:29500")
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
OTHER = PermissionError(errno.EPERM, "another host answers")


def test_numbers_are_given_in_the_order_of_coming() -> None:
    numbers = Numbers(3)
    assert numbers.free("a", {0}) == 1
    numbers.take(1, "a")
    assert numbers.free("b", {0, 1}) == 2
    assert numbers.free("c", {0, 1, 2}) is None


def test_a_host_that_comes_back_gets_its_own_number_and_another_one_a_free_one() -> None:
    numbers = Numbers(4)
    for number, host in enumerate("abcd"):
        numbers.take(number, host)
    assert numbers.free("d", {0}) == 3
    assert numbers.free("c", {0}) == 2
    assert numbers.free("x", {0, 2}) == 1
    assert numbers.free("a", {1, 2}) == 3, "0 is the supervisor's"


@pytest.mark.parametrize(
    ("config", "environ", "nodes", "joins"),
    [
        (HAS_ADDRESS, {}, NODES, True),
        (HAS_ADDRESS, {}, None, False),
        (Config(), {}, NODES, False),
        (Config(coordinator="a:1", process_id=1, num_processes=2), {}, NODES, False),
        (HAS_ADDRESS, {"PMI_RANK": "0", "PMI_SIZE": "2"}, NODES, False),
        (HAS_ADDRESS, {"RANK": "0", "WORLD_SIZE": "2"}, NODES, False),
        (Config(coordinator="a:1", run_dir="/tmp/x"), {}, NODES, False),
    ],
)
def test_a_host_joins_that_has_an_address_and_no_number(
    config: Config, environ: dict[str, str], nodes: NodeRange | None, joins: bool
) -> None:
    assert joining.joins(config, nodes, environ) is joins


def test_half_of_a_launchers_variables_is_an_error() -> None:
    with pytest.raises(LaunchError):
        joining.joins(HAS_ADDRESS, NODES, {"RANK": "0", "MASTER_ADDR": "a"})


def test_what_differs_is_named() -> None:
    own = {"jax": "0.12.0", "lockstep": "1.0", "--nnodes": "1:2"}
    assert not joining.difference(own, dict(own))
    assert joining.difference(own, own | {"jax": "0.11.0", "--nnodes": "1:3"}) == (
        "it has jax 0.11.0, and the host of process 0 has 0.12.0; --nnodes 1:3, and the host of "
        "process 0 has 1:2"
    )
    assert joining.difference({"jax": "0.12.0"}, {}) == (
        "it has jax (none), and the host of process 0 has 0.12.0"
    )


def test_it_waits_for_the_host_of_the_address() -> None:
    wait = Wait("node1:29500", False, 120.0, 0.0)
    assert not wait.over(REFUSED, 119.0)
    assert "None of this host's addresses is that of LOCKSTEP_COORDINATOR" in wait.over(
        REFUSED, 120.0
    )
    assert not Wait("node1:29500", False, 0.0, 0.0).over(REFUSED, 1e9)


def test_it_does_not_wait_long_for_a_port_of_this_host_or_another_job() -> None:
    wait = Wait("node1:29500", True, 120.0, 0.0)
    assert not wait.over(REFUSED, 1.0)
    assert not wait.over(REFUSED, 10.0)
    assert "Another program has this port" in wait.over(REFUSED, 11.0)
    wait = Wait("node1:29500", False, 120.0, 0.0)
    assert not wait.over(OTHER, 1.0)
    assert "has another key, or is of another job" in wait.over(OTHER, 11.0)
