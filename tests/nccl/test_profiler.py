"""The profiler plug-in under the events that NCCL sends, of both versions of its interface."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

from lockstep.flight_recorder import diagnose, run_records
from lockstep.flight_recorder.format import DTYPES, OPS, State
from nccl import driver

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def test_the_structs_have_the_published_sizes() -> None:
    # Measured with the headers of NCCL 2.28.9 and 2.30.7 (plugins/profiler) on x86-64.
    sizes = {driver.CollApi: 48, driver.P2pApi: 40, driver.Coll5: 88, driver.P2p5: 48}
    sizes |= {driver.Coll4: 80, driver.P2p4: 40, driver.KernelCh: 16}
    sizes |= {driver.Event4: 104, driver.Event5: 112, driver.Profiler4: 48, driver.Profiler5: 48}
    assert {kind: ctypes.sizeof(kind) for kind in sizes} == sizes
    assert driver.Event5.of.offset == driver.Event4.of.offset == 24
    assert driver.Coll4.n_channels.offset == 56
    assert driver.P2p4.peer.offset == 32
    for task in (driver.Coll4, driver.Coll5):
        assert (task.count.offset, task.datatype.offset, task.n_channels.offset) == (32, 48, 56)
    for peer in (driver.P2p4, driver.P2p5):
        assert (peer.peer.offset, peer.n_channels.offset) == (32, 36)
    api = driver.CollApi
    offsets = [api.count.offset, api.datatype.offset, api.root.offset, api.graph_captured.offset]
    assert offsets == [8, 16, 24, 40]
    assert driver.P2pApi.graph_captured.offset == 32


@VERSIONS
def test_a_collective_is_one_entry_from_its_call_to_its_last_channel(
    tmp_path: Path, version: int
) -> None:
    nccl = driver.Process(tmp_path, process=1, devices=(9,), version=version, site=77)
    communicator = nccl.communicator(0xABC, ranks=2, rank=1)
    launched = communicator.launch(b"AllReduce", 4096)
    [entry] = nccl.entries()
    assert (entry.clique, entry.rank, entry.sequence) == (0xABC, 1, 0)
    assert (OPS[entry.op], DTYPES[entry.dtype]) == ("all-reduce", "f32")
    assert (entry.elements, entry.bytes, entry.site) == (4096, 4 * 4096, 77)
    assert entry.state == State.ENTERED
    called = entry.entered_ns
    assert entry.op_id == -1
    launched.begin()
    [entry] = nccl.entries()
    assert entry.op_id == 1
    assert entry.state == State.ENTERED
    assert entry.entered_ns > called  # now it is the device that has begun
    launched.end()
    [entry] = nccl.entries()
    assert entry.state == State.DONE
    assert entry.done_ns > entry.entered_ns
    assert nccl.record().rings[0].device == 9
    communicator.finalize()


@VERSIONS
@pytest.mark.parametrize(
    ("func", "datatype", "op", "dtype"),
    [
        (b"AllGather", b"ncclBfloat16", "all-gather", "bf16"),
        (b"ReduceScatter", b"ncclFloat16", "reduce-scatter", "f16"),
        (b"Broadcast", b"ncclInt8", "collective-broadcast", "s8"),
        (b"AllReduce", b"ncclFloat8e4m3", "all-reduce", "f8e4m3"),
    ],
)
def test_names_of_operations_and_types(
    tmp_path: Path, version: int, func: bytes, datatype: bytes, op: str, dtype: str
) -> None:
    nccl = driver.Process(tmp_path, version=version)
    nccl.communicator(1).launch(func, 8, datatype).begin().end()
    [entry] = nccl.entries()
    assert (OPS[entry.op], DTYPES[entry.dtype], entry.elements) == (op, dtype, 8)
    assert entry.state == State.DONE


@VERSIONS
def test_a_send_and_a_receive_in_one_group_are_a_permute(tmp_path: Path, version: int) -> None:
    nccl = driver.Process(tmp_path, version=version)
    communicator = nccl.communicator(1, ranks=3, rank=1)
    launched = communicator.exchange([(b"Send", 2), (b"Recv", 0)], 16)
    [entry] = nccl.entries()
    assert entry.is_permute
    assert (entry.source, entry.targets, entry.elements) == (0, (2,), 64)
    assert entry.state == State.ENTERED
    launched.begin().end()
    assert nccl.entries()[0].state == State.DONE


@VERSIONS
def test_several_sends_in_one_group_are_an_all_to_all(tmp_path: Path, version: int) -> None:
    nccl = driver.Process(tmp_path, version=version)
    communicator = nccl.communicator(1, ranks=3)
    peers = [(way, peer) for peer in range(3) for way in (b"Send", b"Recv")]
    communicator.exchange(peers, 16).begin().end()
    communicator.launch(b"AllReduce", 4)
    exchanged, reduced = nccl.entries()
    assert (OPS[exchanged.op], exchanged.elements) == ("all-to-all", 64)
    assert exchanged.state == State.DONE
    assert (exchanged.sequence, reduced.sequence) == (0, 1)


def test_what_a_graph_has_captured_is_recorded_when_it_is_launched(tmp_path: Path) -> None:
    nccl = driver.Process(tmp_path)
    communicator = nccl.communicator(1)
    communicator.launch(b"AllReduce", 4, captured=True, task=False)
    assert nccl.entries() == ()
    task = driver.Coll5(0, b"AllReduce", None, None, 4, 0, b"ncclFloat32", 1, 4, b"RING", b"LL")
    for _ in range(3):
        handle = nccl.event(communicator, driver.COLL, None, coll=task)
        driver.Launched(communicator, [(handle, 1)]).begin().end()
    assert [entry.state for entry in nccl.entries()] == [State.DONE] * 3


def test_a_collective_without_a_kernel_of_its_own_does_not_look_like_one_that_waits(
    tmp_path: Path,
) -> None:
    nccl = driver.Process(tmp_path)
    nccl.communicator(1).launch(b"AllGather", 4, task=False)
    assert [entry.state for entry in nccl.entries()] == [State.DONE]


def test_an_unknown_function_is_left_out(tmp_path: Path) -> None:
    nccl = driver.Process(tmp_path)
    communicator = nccl.communicator(1)
    communicator.launch(b"PutSignal", 4)
    communicator.launch(b"AllReduce", 4, b"ncclFloat4")
    assert nccl.entries() == ()


def test_without_a_record_nothing_is_asked_for(tmp_path: Path) -> None:
    nccl = driver.Process(tmp_path, start=False)
    communicator = nccl.communicator(1)
    assert (communicator.mask, communicator.context.value) == (0, None)
    assert nccl.event(communicator, driver.GROUP_API) is None
    communicator.finalize()


@VERSIONS
def test_threads_of_several_devices(tmp_path: Path, version: int) -> None:
    nccl = driver.Process(tmp_path, devices=(0,), version=version)
    communicators = [nccl.communicator(100 + k, rank=k) for k in range(4)]

    def run(communicator: driver.Communicator) -> None:
        for _ in range(200):
            launched = communicator.launch(b"AllReduce", 8)
            ender = threading.Thread(target=lambda at=launched: at.begin().end())
            ender.start()
            ender.join()

    threads = [threading.Thread(target=run, args=(one,)) for one in communicators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = nccl.entries()
    assert len(entries) == 800
    assert {entry.state for entry in entries} == {State.DONE}
    for k, communicator in enumerate(communicators):
        own = [entry.sequence for entry in entries if entry.clique == 100 + k]
        assert own == list(range(200))
        communicator.finalize()


def test_many_more_collectives_than_a_ring_holds(tmp_path: Path) -> None:
    nccl = driver.Process(tmp_path)
    communicator = nccl.communicator(1)
    waiting = communicator.launch(b"AllReduce", 8)
    for _ in range(3000):
        communicator.launch(b"AllReduce", 8)
    waiting.begin().end()  # its entry is overwritten, and its memory still there
    [ring] = nccl.record().rings
    assert ring.written == 3001
    assert len(ring.entries) == 1024


def test_the_records_show_who_has_not_arrived(tmp_path: Path) -> None:
    processes = [driver.Process(tmp_path, index) for index in range(3)]

    def found() -> tuple[diagnose.Kind, tuple[int, ...]]:
        records = (run_records.Process(k, p.record()) for k, p in enumerate(processes))
        diagnosis = diagnose.diagnose(run_records.Run(tuple(records)))
        return diagnosis.kind, diagnosis.culprits

    members = [p.communicator(5, ranks=3, rank=k) for k, p in enumerate(processes)]
    for _ in range(2):
        for launched in [member.launch(b"AllReduce", 8) for member in members]:
            launched.begin().end()
    for member in members[:2]:
        member.launch(b"AllReduce", 8).begin()
    assert found() == (diagnose.Kind.WAITING, (2,))
    members[2].launch(b"AllReduce", 9)
    assert found() == (diagnose.Kind.MISMATCH, (2,))
