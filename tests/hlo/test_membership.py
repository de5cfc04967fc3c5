"""Members by exchange: the programs that are kept, and what the devices tell each other."""

from __future__ import annotations

import concurrent.futures
import types
from collections.abc import Sequence
from typing import Any

import pytest

from fake_job import Client
from lockstep import _config, _jax_compat
from lockstep._errors import InitializationError
from lockstep.engine import bindings
from lockstep.hlo import membership
from lockstep.hlo.replica_groups import Clique
from lockstep.job.kv_store import Store

DEVICES = {0: 0, 1: 0, 8: 1, 9: 1}
WHOLE = (0, 1, 8, 9)


class Device:
    def __init__(self, number: int) -> None:
        self.id = number


class Program:
    """A compiled program whose collectives have these groups, in the numbers of its devices."""

    def __init__(self, devices: Sequence[int], groups: str, process: int = 0) -> None:
        self.devices = tuple(devices)
        self._local = [Device(d) for d in devices if DEVICES[d] == process]
        sizes = f", num_partitions={len(devices)}" if len(devices) > 1 else ""
        collective = f"  %s = f32[] all-reduce(%x), channel_id=1, replica_groups={groups}, to=%add"
        self._text = f"HloModule jit_f{sizes}\n{collective if groups else ''}\n"

    def local_devices(self) -> list[Device]:
        return self._local

    def hlo_modules(self) -> list[Any]:
        return [types.SimpleNamespace(to_string=lambda: self._text)]


def client_class() -> Any:
    class Client:
        platform = "cpu"

        def compile_and_load(self, program: Any, *args: Any, **options: Any) -> Any:
            return program

        def deserialize_executable(self, program: Any, *args: Any, **options: Any) -> Any:
            return program

    return Client


class Process:
    """One process of a job: the module's state, and its client."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.live: list[Any] = []
        self.known = False
        self.abort = ""
        patch.setattr(membership, "_programs", membership._Programs())
        patch.setattr(membership, "_answered", set())
        patch.setattr(_jax_compat, "live_executables", lambda: self.live)
        patch.setattr(bindings, "frames_known", lambda: self.known)
        patch.setattr(bindings, "abort_text", lambda: self.abort)
        config = _config.Config(collective_timeout=0.2)
        patch.setattr(_config, "current", lambda: config)
        self.store = Store(Client())
        self.job = membership.Job(self.store, ["process 0", "process 1"], 0, DEVICES)
        self.kind = client_class()
        self.client = self.kind()
        self.noted: list[Any] = []

    def compile(self, program: Program) -> Program:
        devices = [Device(d) for d in program.devices]
        options = object()
        return self.client.compile_and_load(
            program, executable_devices=devices, compile_options=options
        )

    def keeps(self, program: Program) -> bool:
        self.compile(program)
        assert self.noted.pop() is program
        return any(kept is program for kept, _ in membership._programs._kept)

    def find(self, color: int, key: int) -> Clique:
        return membership.find(self.job, color, key)

    def say(self, key: int, clique: Clique = WHOLE) -> None:
        said = membership.claim(clique, key, DEVICES)
        self.store.put(f"lockstep/members/{key}", said)

    def refusal(self, color: int = 0, key: int = 0) -> str:
        with pytest.raises(InitializationError) as error:
            self.find(color, key)
        text = str(error.value)
        assert text.startswith("lockstep: "), text
        return text


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    started = Process(monkeypatch)
    membership.note_programs(started.client, started.noted.append)
    return started


def test_all_devices_ask_for_the_only_group(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asks = [pool.submit(process.find, 0, key) for key in (0, 1)]
        process.say(2)
        process.say(3)
        assert [ask.result(20) for ask in asks] == [WHOLE, WHOLE]
    [line] = capsys.readouterr().err.splitlines()
    assert "Its 4 devices have told each other; another group will be an error" in line
    # All devices of this process have their group; nothing is kept for another one.
    assert "it is not {0,1,8,9}, which is known already" in process.refusal()
    assert not process.keeps(Program(WHOLE, "{{0,1,2,3}}"))


def test_a_dropped_program_is_read_all_the_same(process: Process) -> None:
    process.compile(Program((0, 1), "{{0,1}}"))
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    text = process.refusal()
    assert "starts with device 0 and has this process at position 0" in text
    assert "2 groups: {0,1}, {0,1,8,9}" in text
    assert "--collectives gloo" in text
    assert "does not guess" in text


def test_a_program_of_one_device_may_ask_too(process: Process) -> None:
    process.compile(Program((0,), "{{0}}"))
    process.compile(Program((1,), ""))
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    assert "2 groups: {0}, {0,1,8,9}" in process.refusal()


@pytest.mark.parametrize("how", ["live", "deserialized", "odd", "other devices", "another order"])
def test_a_program_whose_devices_are_not_known(process: Process, how: str) -> None:
    program = Program(WHOLE, "{{0,1,2,3}}")
    if how == "live":
        process.live.append(program)
    elif how == "deserialized":
        process.client.deserialize_executable(program, [*map(Device, WHOLE)], object())
    elif how == "odd":
        assert process.client.compile_and_load(program, 1, 2, 3, 4, 5, more=6) is program
    else:
        program.devices = (0, 1, 8) if how == "other devices" else (1, 0, 8, 9)
        process.compile(program)
    assert "not known for which devices" in process.refusal()


def test_programs_of_another_platform_do_not_count(process: Process) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    gpu = process.kind()
    gpu.platform = "cuda"
    gpu.compile_and_load(Program(WHOLE, "{{0,1},{2,3}}"))
    for key in (1, 2, 3):
        process.say(key)
    assert process.find(0, 0) == WHOLE


def test_a_device_that_does_not_come(process: Process) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    process.say(1)
    process.say(2)
    assert (
        "within 0.2 s not all devices have asked for {0,1,8,9}; missing: process 1"
        in process.refusal()
    )


def test_a_device_that_asks_for_another_group(process: Process) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    process.say(1)
    process.say(2, (0, 1, 9, 8))
    process.say(3)
    text = process.refusal()
    assert "position 2 asks for another one than {0,1,8,9}: [1, 0, [0, 1, 9, 8]]" in text


def test_a_position_that_is_asked_for_twice(process: Process) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    process.say(0)
    assert "asked for before" in process.refusal()


def test_the_jobs_failure_ends_the_wait(process: Process) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    process.abort = "lockstep: process 1 has failed."
    assert process.refusal() == process.abort


def test_nothing_is_kept_once_the_frames_are_known(process: Process) -> None:
    assert process.keeps(Program((0, 1), "{{0,1}}"))
    process.known = True
    assert not process.keeps(Program(WHOLE, "{{0,1,2,3}}"))
    assert "frames did show" in process.refusal()


def test_a_second_client_is_one_too_many(process: Process) -> None:
    process.compile(Program(WHOLE, "{{0,1,2,3}}"))
    membership.note_programs(process.kind(), process.noted.append)
    assert "a second time" in process.refusal()


def test_a_class_that_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    membership.note_programs(3, process.noted.append)
    assert "cannot be noted" in process.refusal()


def test_programs_that_were_never_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "were not noted" in Process(monkeypatch).refusal()
