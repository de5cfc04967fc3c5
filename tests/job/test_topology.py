"""What follows from what the processes say of themselves: hosts, cores, agreement. All pure."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import DisagreementError, InitializationError
from lockstep.bootstrap import config_check
from lockstep.job import topology
from lockstep.job.topology import Peer

hosts = st.sampled_from(["a", "b", "c"])
cpu_sets = st.frozensets(st.integers(0, 15), min_size=1).map(lambda s: tuple(sorted(s)))

numbers = st.sampled_from(["", "0123456789abcdef"])


@st.composite
def jobs(draw: st.DrawFn) -> list[Peer]:
    count = draw(st.integers(1, 8))
    own = [draw(hosts) for _ in range(count)]
    return [
        Peer(process, 1000 + process, f"id of {host}", host, draw(cpu_sets), random=draw(numbers))
        for process, host in enumerate(own)
    ]


def neighbours(job: list[Peer], process: int) -> list[Peer]:
    return [peer for peer in job if peer.host_id == job[process].host_id]


def job_of(*cpus: tuple[int, ...], host_ids: str = "") -> list[Peer]:
    ids = host_ids or "x" * len(cpus)
    return [Peer(i, 100 + i, ids[i], f"host {ids[i]}", c) for i, c in enumerate(cpus)]


@given(jobs())
def test_a_record_survives_the_journey(job: list[Peer]) -> None:
    assert [Peer.from_fields(json.loads(json.dumps(dataclasses.asdict(p)))) for p in job] == job


@given(jobs())
def test_every_host_is_named_once_in_order_of_its_first_process(job: list[Peer]) -> None:
    names = topology.host_names(job)
    assert names == list(dict.fromkeys(peer.host_name for peer in job))


@given(jobs(), st.data())
def test_cores_are_shared_out_and_never_promised_twice(
    job: list[Peer], data: st.DataObject
) -> None:
    process = data.draw(st.integers(0, len(job) - 1))
    cores, oversubscribed = topology.share_of_cores(job, process)
    near = neighbours(job, process)
    all_cores = set().union(*(peer.cpus for peer in near))
    assert 1 <= cores <= len(all_cores)
    assert oversubscribed == (len(near) > len(all_cores))
    shares = [topology.share_of_cores(job, peer.process)[0] for peer in near]
    everyone_shares_all = all(set(peer.cpus) == all_cores for peer in near)
    disjoint = sum(len(peer.cpus) for peer in near) == len(all_cores)
    if not oversubscribed and (everyone_shares_all or disjoint):
        assert sum(shares) <= len(all_cores)


@given(jobs(), st.data())
def test_processes_of_other_hosts_change_nothing(job: list[Peer], data: st.DataObject) -> None:
    process = data.draw(st.integers(0, len(job) - 1))
    near = neighbours(job, process)
    alone = near.index(job[process])
    assert topology.share_of_cores(job, process) == topology.share_of_cores(near, alone)


@pytest.mark.parametrize(
    ("job", "share"),
    [
        (job_of((0, 1, 2, 3)), (4, False)),
        (job_of((0, 1, 2, 3), (0, 1, 2, 3)), (2, False)),
        (job_of((0, 1), (2, 3)), (2, False)),  # bound to cores of their own
        (job_of((0,), (0,)), (1, True)),
        (job_of((0, 1), (0, 1), (0, 1)), (1, True)),
        (job_of((0, 1, 2, 3), (0, 1, 2, 3), host_ids="xy"), (4, False)),
    ],
)
def test_the_share_of_the_first_process(job: list[Peer], share: tuple[int, bool]) -> None:
    assert topology.share_of_cores(job, 0) == share


def test_this_process_describes_itself() -> None:
    own = topology.this_process(3, None, "0.1.0")
    assert own.process == 3
    assert own.pid == os.getpid()
    assert own.host_name == os.uname().nodename
    assert set(own.cpus) == os.sched_getaffinity(0)
    assert own.engine == "0.1.0"
    assert own.label == f"process 3 (pid {os.getpid()} on {os.uname().nodename})"
    for unset in ("", None):
        assert topology.this_process(4, unset, "0.1.0").host_id == own.host_id
    assert topology.this_process(3, "elsewhere", "0.1.0").host_id == "elsewhere"


facts = st.dictionaries(
    st.sampled_from(["jax", "x64", "platform"]), st.sampled_from(["1", "2"]), min_size=3
)


@given(facts, st.integers(1, 5))
def test_processes_that_say_the_same_agree(said: dict[str, str], count: int) -> None:
    config_check.check([str(i) for i in range(count)], [said] * count)


@given(st.lists(facts, min_size=2, max_size=5))
def test_every_difference_is_in_the_table_and_nothing_else(said: list[dict[str, str]]) -> None:
    differing = {name for name in said[0] if len({own[name] for own in said}) > 1}
    labels = [str(i) for i in range(len(said))]
    if not differing:
        config_check.check(labels, said)
        return
    with pytest.raises(DisagreementError) as caught:
        config_check.check(labels, said)
    table = [line.split() for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert set(table[0]) == {"process", *differing}
    assert [row[0] for row in table[2:]] == labels
    for column, name in enumerate(table[0][1:], start=1):
        assert [row[column] for row in table[2:]] == [own[name] for own in said]


def test_the_words_of_a_disagreement() -> None:
    with pytest.raises(DisagreementError) as caught:
        config_check.check(["0", "1"], [{"jax": "0.10.2", "x64": "True"}, {"jax": "0.10.2"}])
    assert str(caught.value) == (
        "the processes of this job differ in x64:\n\n"
        "  process  x64\n"
        "  -------  --------\n"
        "  0        True\n"
        "  1        not said\n\n"
        "All processes must run the same versions with the same settings. Usual causes: another "
        "Python environment on one host, a variable (JAX_ENABLE_X64, JAX_PLATFORMS, XLA_FLAGS) "
        "that is set for some processes only, hosts with different devices."
    )
    assert isinstance(caught.value, InitializationError)


def test_differences_are_summed_up_by_their_values() -> None:
    facts = [{"x64": "True", "devices": str(4 if i == 2 else 1)} for i in range(4)]
    found = config_check.summary(config_check.differences(facts))
    assert found == "devices (1 on processes 0-1, 3, 4 on process 2)"
    assert config_check.differences(facts[:2]) == {}
    many = config_check.differences([{"devices": str(i)} for i in range(9)])
    assert config_check.summary(many).endswith("3 on process 3, 5 more)")
