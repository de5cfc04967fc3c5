"""``lockstep bench --platform cuda``: its parts, and its programs on CPUs over gloo."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import pytest

from lockstep import cli
from lockstep.bench import gpus
from lockstep.bench.cases import OPS, Case
from lockstep.bench.job import BenchJob, JobSpec
from lockstep.bench.runner import Jobs, Runner
from lockstep.nccl.devices import Gpu, GpuFacts

MIB = 1 << 20


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(
    ("op", "counted", "factor"),
    [
        # What nccl-tests takes for the size of an operation, of `bytes` a rank, and its factor.
        ("all_reduce", lambda size, n: size, lambda n: 2 * (n - 1) / n),
        ("all_gather", lambda size, n: size * n, lambda n: (n - 1) / n),
        ("reduce_scatter", lambda size, n: size, lambda n: (n - 1) / n),
        ("all_to_all", lambda size, n: size, lambda n: (n - 1) / n),
        ("permute", lambda size, n: size, lambda n: 1),  # sendrecv
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(
    op: str,
    counted: Callable[[int, int], int],
    factor: Callable[[int], float],
    ranks: int,
) -> None:
    case = Case.of_size(op, MIB, ranks, "f32")
    seconds = 1e-3
    algorithm_bandwidth = counted(case.bytes, ranks) / seconds
    assert case.bus_bytes / seconds == pytest.approx(algorithm_bandwidth * factor(ranks))


def test_the_job_of_nccl_has_gpus_that_keep_their_memory_free() -> None:
    spec = JobSpec("nccl", 4, 2, platform="cuda", environ=gpus.ENVIRON).pool()
    assert (spec.processes, spec.devices, spec.platform) == (4, 2, "cuda")
    assert spec.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert spec.options()[-2:] == ["--platform", "cuda"]
    alone = JobSpec("xla", 4, 2, platform="cuda").pool()
    assert (alone.processes, alone.devices, alone.joins) == (1, 8, False)
    assert JobSpec("unrecorded", 2, 1, platform="cuda").pool().environ["LOCKSTEP_RECORD"] == "0"


@pytest.fixture
def over_gloo() -> Iterator[BenchJob]:
    """The job's place of NCCL is taken by gloo, and that of GPUs by CPUs."""
    with BenchJob(JobSpec("gloo", 2, 1, platform="cpu")) as job:
        yield job


@pytest.mark.full
def test_each_collective_is_measured_by_the_programs_for_gpus(over_gloo: BenchJob) -> None:
    runner = Runner(
        Jobs(lambda _: over_gloo), ("nccl",), 2, 60.0, 1 << 40, copies=False, on_gpus=True
    )
    for op in OPS:
        result = runner.run(Case.of_size(op, 4096, 2, "f32"))
        found = result.by_implementation["nccl"]
        assert (found.status, found.wrong_blocks) == ("ok", 0), found
        assert len(found.blocks) == 2
        assert all(sample > 0 for block in found.blocks for sample in block)
        assert result.copy_rates == []


@pytest.mark.full
def test_a_turn_has_several_collectives_and_the_time_is_that_of_one(over_gloo: BenchJob) -> None:
    case = {"op": "all_reduce", "elements": 64, "ranks": 2, "dtype": "f32"}
    for answer in over_gloo.request("prepare", 60.0, case=case, on_gpus=True):
        assert (answer["wrong"], answer["collectives"]) == (0, 1)
    # 17 collectives are two turns of 16, whose time is that of 32: they are not counted as 17.
    [first, *_] = over_gloo.request("block", 60.0, k=17, samples=3, calls=1)
    [whole, *_] = over_gloo.request("block", 60.0, k=32, samples=3, calls=1)
    assert first["wrong"] == whole["wrong"] == 0
    assert min(first["loop"]) > 0


def test_memory_is_that_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    two = (Gpu("H200", 100, 30), Gpu("H200", 100, 0))
    monkeypatch.setattr(gpus.devices, "ask", lambda seconds: GpuFacts(gpus=two))
    assert gpus.free_memory() == 170
    monkeypatch.setattr(gpus.devices, "ask", lambda seconds: GpuFacts(problem="no driver"))
    assert gpus.free_memory() == 1 << 62


def test_without_a_gpu_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["bench", "--platform", "cuda"]) == 2
    assert "--platform cuda: this machine shows no GPU" in capsys.readouterr().err


def test_there_is_a_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    for devices, processes in ((1, 4), (2, 2), (4, 1)):
        args = argparse.Namespace(platform="cuda", devices=devices)
        assert gpus.processes(args) == processes
    assert gpus.processes(argparse.Namespace(platform=None, devices=4)) == 2
