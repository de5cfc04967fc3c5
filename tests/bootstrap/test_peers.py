"""The first records of a job's processes: only those with the job's key are believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_job import Client, peer
from lockstep import ConfigError, DisagreementError, InitializationError
from lockstep.bootstrap import peers
from lockstep.job import topology
from lockstep.job.job_key import JobKey
from lockstep.job.kv_store import Store

KEY, OTHER = b"k" * 32, b"o" * 32
NONE = JobKey()


def meet(keys: Sequence[JobKey], client: Client | None = None) -> list[peers.Peers | Exception]:
    """What each process of a job gets, or raises."""
    client = client or Client()

    def run(process: int) -> peers.Peers | Exception:
        try:
            return peers.exchange(client, peer(process), keys[process], len(keys))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(keys)) as pool:
        return list(pool.map(run, range(len(keys))))


@pytest.mark.parametrize("key", [NONE, JobKey(KEY), JobKey(KEY, is_secret_of_run=True)])
def test_processes_with_the_same_key_meet(key: JobKey) -> None:
    found = meet([key] * 3)
    jobs = [job for job in found if isinstance(job, peers.Peers)]
    assert len(jobs) == 3, found
    assert jobs[0].all == jobs[1].all == jobs[2].all
    assert [each.label for each in jobs[0].all] == [peer(i).label for i in range(3)]
    assert jobs[0].nonce(0) == jobs[2].nonce(0) != jobs[0].nonce(1)
    jobs[0].store.put("a", [1])
    assert jobs[1].store.get("a", "process 0") == [1]


def test_another_job_with_the_same_key_has_other_numbers() -> None:
    jobs = [job for _ in range(5) for job in meet([JobKey(KEY)]) if isinstance(job, peers.Peers)]
    assert len({job.nonce(0) for job in jobs}) == 5


def raised(keys: Sequence[JobKey]) -> list[str]:
    found = meet(keys)
    assert all(isinstance(error, InitializationError | ConfigError) for error in found), found
    return [str(error) for error in found]


def test_all_raise_and_name_the_processes_without_a_key() -> None:
    for text in raised([JobKey(KEY), NONE, JobKey(KEY)]):
        assert text.startswith(
            "LOCKSTEP_KEY_FILE is set for some processes only; without it: "
            "process 1 (pid 101 on b). Give all of them a file with the same key"
        )
    for text in raised([JobKey(KEY), *[NONE] * 9]):
        assert "process 4 (pid 104 on a), 5 more. " in text


def test_all_raise_and_name_the_processes_with_another_key() -> None:
    texts = raised([JobKey(KEY), JobKey(KEY), JobKey(OTHER)])
    assert "than process 0 (pid 100 on a) has: process 2 (pid 102 on a). Copy one" in texts[0]
    assert "than process 2 (pid 102 on a) has: process 0 (pid 100 on a), process 1 (pi" in texts[2]


def test_a_process_of_another_launcher_is_refused() -> None:
    texts = raised([JobKey(KEY, is_secret_of_run=True), NONE])
    assert texts[0].startswith("the secret of this run, which the launcher has drawn, is not known")


def test_a_key_file_of_no_use_is_an_error_of_all() -> None:
    problem = "LOCKSTEP_KEY_FILE=k: the file is bad. Fix it."
    texts = raised([JobKey(KEY), JobKey(None, problem)])
    assert texts == [f"process 1 (pid 101 on b): {problem}", problem]
    bad = [peer(0), peer(1, key_problem=problem)]
    with pytest.raises(ConfigError, match=r"^LOCKSTEP_KEY_FILE=k: "):
        peers.check_key_files(bad, 1)
    with pytest.raises(InitializationError, match=r"^process 1 \(pid 101 on b\): LOCKSTEP_KEY_"):
        peers.check_key_files(bad, 0)


# An unauthenticated peer that has reached the store


def test_a_record_about_the_process_itself_is_not_read() -> None:
    """The downgrade: a stranger overwrites the record of process 0 by one without a key."""

    class Overwritten(Client):
        def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
            forged = value.partition(" ")[2] if key.endswith("/0") else value
            super().key_value_set(key, forged, allow_overwrite)

    first, second = meet([JobKey(KEY)] * 2, Overwritten())
    assert isinstance(first, peers.Peers)  # the record of process 1 is whole
    assert first.all[0] == dataclasses.replace(peer(0), random=first.all[0].random)
    assert isinstance(second, DisagreementError)


def test_a_forged_peer_is_an_error_and_never_a_reason_to_use_gloo() -> None:
    client = Client()
    forged = dataclasses.replace(peer(1), host_name="evil\x1b[2J")
    Store(client).put("lockstep/peer/1", dataclasses.asdict(forged))
    with pytest.raises(DisagreementError) as caught:
        peers.exchange(client, peer(0), JobKey(KEY), 2)
    assert "without it: process 1 (pid 101 on evil?[2J)." in str(caught.value)
    assert "an unauthenticated client writes into JAX's key-value store" in str(caught.value)


def test_a_record_of_an_earlier_job_is_refused() -> None:
    client = Client()
    first = meet([JobKey(KEY)] * 2, client)[0]
    assert isinstance(first, peers.Peers)
    first.store.put("lockstep/address/0/1", ["10.0.0.1:1"])
    repeated = Client()
    for name in ("lockstep/peer/1", "lockstep/address/0/1"):
        repeated.key_value_set(name, client.blocking_key_value_get(name, 1000))
    second = peers.exchange(repeated, peer(0), JobKey(KEY), 2)
    with pytest.raises(
        DisagreementError, match="another key than this process, or repeats another"
    ):
        second.store.get("lockstep/address/0/1", "process 1")


def test_a_name_that_is_taken_is_an_error() -> None:
    client = Client()
    Store(client).put("lockstep/peer/0", "of a stranger")
    with pytest.raises(InitializationError, match="peer/0 is in JAX's key-value store already"):
        peers.exchange(client, peer(0), JobKey(KEY), 1)


def test_a_record_under_another_name_is_refused() -> None:
    client = Client()
    shared = Store(client, KEY)
    shared.put("a", 1)
    client.key_value_set("folder/b", client.blocking_key_value_get("a", 1000))
    with pytest.raises(DisagreementError, match="process 3 has another key"):
        shared.get("folder/b", "process 3")
    with pytest.raises(DisagreementError, match="the writer of folder/b has another key"):
        shared.values("folder")
    with pytest.raises(DisagreementError, match="process 3 has a key, and this process has none"):
        Store(client).get("a", "process 3")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"values": 1}'])
def test_what_is_no_record_is_an_error(text: str) -> None:
    client = Client()
    client.key_value_set("k", text)
    with pytest.raises(InitializationError, match="not in the form of this version"):
        Store(client).get("k", "process 1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pid", "../1"),
        ("pid", -1),
        ("pid", True),
        ("cpus", "0"),
        ("cpus", ["0"]),
        ("agent_of", 1.5),
    ],
)
def test_a_peer_with_a_field_of_another_type_is_an_error(name: str, value: object) -> None:
    fields = {**dataclasses.asdict(peer(1)), name: value}
    with pytest.raises(InitializationError, match=f"a process has {name}="):
        topology.Peer.from_fields(fields)
