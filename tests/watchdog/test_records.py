"""What a watchdog knows of all processes: of its own host, and told by others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep._run_files import ErrorRecord, Exit
from lockstep.flight_recorder.diagnose import Kind, diagnose
from lockstep.flight_recorder.format import encode
from lockstep.flight_recorder.run_records import Process
from lockstep.watchdog import record_reader
from lockstep.watchdog.artifacts import Artifacts
from watchdog.two_hosts import LATER, Job


@pytest.fixture
def records(tmp_path: Path, job: Job) -> Iterator[record_reader.Records]:
    """What process 0 reads; that of process 2 is there too."""
    files = [tmp_path / f"{index}.bin" for index in range(4)]
    for index in (0, 2):
        made = job.process(index).record
        assert made is not None
        files[index].write_bytes(encode(made))
    artifacts = {index: Artifacts(str(file)) for index, file in enumerate(files)}
    made = record_reader.Records(job.peers, job.peers[0], artifacts)
    yield made
    made.close()


def test_a_process_whose_records_are_gone_is_known_by_what_it_published(
    job: Job, records: record_reader.Records, tmp_path: Path
) -> None:
    """Two agents of one machine: the one that ends removes what the other's watchdog reads."""
    (tmp_path / "2.bin").unlink()
    known = records.record(2)
    assert (known.process, known.pid) == (2, job.peers[2].pid)
    assert not known.rings


def test_what_is_known_of_all(job: Job, records: record_reader.Records) -> None:
    whole = records.read([], vary=False, remote=job.answers[0])
    assert [process.index for process in whole.processes] == [0, 1, 2, 3]
    assert all(process.record for process in whole.processes)
    assert 0 < whole.clock_error_ns < LATER / 2


def test_records_of_other_processes_and_other_jobs_are_not_believed(
    monkeypatch: pytest.MonkeyPatch, job: Job, records: record_reader.Records
) -> None:
    honest = job.process

    def another(index: int, by: int = -1) -> Process:
        made = honest(index, by)
        assert made.record is not None
        changes = {"nonce": 5} if index == 1 else {"process": 0}
        return dataclasses.replace(made, record=dataclasses.replace(made.record, **changes))

    monkeypatch.setattr(job, "process", another)
    whole = records.read([], vary=False, remote=job.answers[0])
    assert [process.record is not None for process in whole.processes] == [True, False, True, False]
    assert whole.processes[1].problems == ("no process of its host has answered",)


def test_a_process_that_is_gone_is_reported_with_and_without_a_record(
    job: Job, records: record_reader.Records
) -> None:
    error = ErrorRecord(1.0, 7, "sys.exit(7)", "SystemExit: 7")
    records.gone = {1: (error, Exit(reason="lost")), 2: (None, Exit(reason="dead"))}
    job.post.lost = {1, 3}
    whole = records.read([], vary=False, remote=job.answers[0])
    reasons = [process.exit and process.exit.reason for process in whole.processes]
    assert reasons == [None, "lost", "dead", None]
    assert [process.error for process in whole.processes] == [None, error, None, None]
    assert whole.processes[1].label == job.peers[1].label
    assert diagnose(whole).kind is Kind.KILLED


def test_an_exit_that_was_seen_replaces_what_was_supposed_before(
    job: Job, records: record_reader.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = job.process
    exits = {1: Exit(signal=9), 3: Exit(reason="supposed too")}
    monkeypatch.setattr(
        job, "process", lambda i, by=-1: dataclasses.replace(honest(i, by), exit=exits.get(i))
    )
    records.gone = {1: (None, Exit(reason="lost")), 3: (None, Exit(reason="lost"))}
    whole = records.read([], vary=False, remote=job.answers[0])
    assert [process.exit for process in whole.processes] == [
        None,
        exits[1],
        None,
        records.gone[3][1],
    ]
