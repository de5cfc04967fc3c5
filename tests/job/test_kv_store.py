"""What processes tell each other while they meet, and how a wait for it ends."""

from __future__ import annotations

import threading

import pytest

from fake_job import Client
from lockstep import InitializationError
from lockstep._errors import EngineError
from lockstep.job import kv_store
from lockstep.job.kv_store import Store


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "_SLICE_SECONDS", 0.05)


def test_a_late_value_is_received_and_the_caller_checks_meanwhile() -> None:
    shared = Store(Client())
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            shared.put("k", [1, "a"])

    assert shared.get("k", "process 1", look) == [1, "a"]
    assert len(looks) == 3


def test_a_value_that_is_there_is_received_without_a_check() -> None:
    shared = Store(Client())
    shared.put("k", "")

    def look() -> None:
        raise AssertionError

    assert shared.get("k", "process 1", look) == ""


def test_what_the_look_raises_ends_the_wait() -> None:
    def look() -> None:
        raise InitializationError("process 1 has died")

    with pytest.raises(InitializationError, match=r"^process 1 has died$"):
        Store(Client()).get("k", "process 2", look)


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (EngineError("no memory"), "process 1 (pid 7 on b): no memory"),
        (EngineError("lockstep: no memory"), "process 1 (pid 7 on b): no memory"),
        (EngineError("lockstep: process 1 (pid 7 on b) is mute"), "process 1 (pid 7 on b) is mute"),
    ],
)
def test_an_error_is_received_during_a_wait(error: EngineError, heard: str) -> None:
    shared = Store(Client())

    def fail() -> None:
        with pytest.raises(EngineError), kv_store.publishing_errors(shared, "k"):
            raise error

    other = threading.Timer(0.2, fail)
    other.start()
    with pytest.raises(InitializationError) as caught:
        shared.get("k", "process 1 (pid 7 on b)")
    other.join()
    assert str(caught.value) == heard


def fail_together(shared: Store, process: int, text: str) -> str:
    with (
        pytest.raises((EngineError, InitializationError)) as caught,
        kv_store.failing_together(shared, "at/1", process),
    ):
        raise EngineError(text)
    return str(caught.value)


def test_a_process_that_fails_after_another_reports_the_other_s_reason() -> None:
    shared = Store(Client())
    shared.put("at/1/0", "well")
    shared.put("at/10/3", "of another time")
    assert fail_together(shared, 2, "lockstep: no room") == "lockstep: no room"
    assert fail_together(shared, 1, "connection refused") == "process 2: no room"
    with pytest.raises(InitializationError, match=r"^process 1: process 2: no room$"):
        shared.get("at/1/1", "process 1")


def test_a_process_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "WAIT_SECONDS", 0.2)
    looks: list[None] = []
    with pytest.raises(InitializationError, match=r"^process 3 did not reach this point in 0.2 s"):
        Store(Client()).record("k", "process 3", lambda: looks.append(None))
    assert 1 <= len(looks) <= 4


def test_a_service_that_has_gone_is_not_waited_for() -> None:
    class Gone(Client):
        def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
            raise RuntimeError("UNAVAILABLE: failed to connect")

    with pytest.raises(InitializationError, match=r"^process 3 cannot be received; .*UNAVAIL"):
        Store(Gone()).record("k", "process 3")


class Counting(Client):
    """Counts the calls of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.folders, self.single = 0, 0

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        self.folders += 1
        return super().key_value_dir_get(prefix)

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        self.single += 1
        return super().blocking_key_value_get(key, milliseconds)


def test_records_that_are_there_are_read_with_one_call() -> None:
    client = Counting()
    shared = Store(client)
    for process in range(1, 50):
        shared.put(f"place/{process}", process * 10)
    found = shared.all_gather("place", 0, 50, 0, lambda other, name: shared.get(name, str(other)))
    assert found == [process * 10 for process in range(50)]
    assert (client.folders, client.single) == (1, 0)


def test_records_that_come_one_by_one_are_waited_for() -> None:
    client = Counting()
    shared = Store(client)

    def receive(other: int, name: str) -> int:
        if other > 1:  # the first is there, each of the others comes when it is asked for
            shared.put(name, other)
        return shared.get(name, str(other))

    shared.put("place/1", 1)
    assert shared.all_gather("place", 0, 30, 0, receive) == list(range(30))
    assert client.single == 28
    assert client.folders <= 10
