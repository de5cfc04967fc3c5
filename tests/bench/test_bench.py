"""The command for real: options, a small run, an implementation that fails, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli
from support import Result, Run

RUN_SECONDS = 240.0
BENCH = [sys.executable, "-m", "lockstep", "bench"]


def bench(folder: Path, *args: str, env: dict[str, str] | None = None) -> Result:
    """What the command says; fails when it does not end, or leaves a process behind."""
    with Run([*BENCH, *args], {**os.environ, **(env or {})}, folder) as run:
        return run.finish(RUN_SECONDS)


def check_result(result: dict[str, Any], blocks: int) -> None:
    assert result["status"] == "ok", result["reason"]
    assert result["wrong_blocks"] == 0
    assert len(result["blocks"]) == blocks
    seconds = result["seconds"]
    assert 0 < seconds["q1"] <= seconds["median"] <= seconds["q3"]
    assert result["call_seconds"]["median"] > 0
    assert result["bus_bytes_per_second"] > 0


@pytest.mark.full
def test_two_implementations_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    done = bench(
        tmp_path,
        *("-n", "2", "-d", "1", "--sizes", "1KiB,1MiB", "--ops", "all_reduce,permute"),
        *("--collectives", "lockstep,gloo", "--repeats", "2", "--json", str(path)),
    )
    assert done.status == 0, done
    report = json.loads(path.read_text())
    assert report["schema"] == "lockstep.bench/1"
    assert report["implementations"] == ["lockstep", "gloo"]
    assert report["job"]["ranks"] == 2
    assert report["command"].startswith("lockstep bench -n 2")
    assert set(report["versions"]) == {"lockstep", "jax", "jaxlib", "numpy", "python"}
    assert report["machine"]["usable_cores"] > 0
    cases = [(entry["op"], entry["bytes"]) for entry in report["cases"]]
    assert cases == [
        *(("all_reduce", 1 << 10), ("all_reduce", 1 << 20)),
        *(("permute", 1 << 10), ("permute", 1 << 20)),
    ]
    for entry in report["cases"]:
        for result in entry["results"].values():
            check_result(result, blocks=2)
        assert entry["ratio"]["gloo"]["median"] > 0
    assert report["cases"][1]["share_of_limit"]["lockstep"]["median"] > 0
    assert report["copy_bytes_per_second"]["median"] > 0
    assert "gloo / lockstep" in done.stdout
    assert "[4/4] permute 1 MiB: lockstep" in done.stderr


@pytest.mark.full
def test_the_other_operations_by_xla_in_one_process_too_and_json_on_stdout(tmp_path: Path) -> None:
    done = bench(
        tmp_path,
        *("-n", "2", "-d", "2", "--sizes", "4KiB", "--repeats", "1", "--dtype", "i32"),
        *("--ops", "all_gather,reduce_scatter,all_to_all", "--collectives", "xla,lockstep"),
        *("--json", "-"),
    )
    assert done.status == 0, done
    cases = {entry["op"]: entry["results"] for entry in json.loads(done.stdout)["cases"]}
    assert list(cases) == ["all_gather", "reduce_scatter", "all_to_all"]
    for results in cases.values():
        for name in ("xla", "lockstep"):
            check_result(results[name], blocks=1)


@pytest.mark.full
def test_an_implementation_that_cannot_start_is_reported_and_the_other_goes_on(
    tmp_path: Path,
) -> None:
    missing = str(tmp_path / "liblockstep.so")
    done = bench(
        tmp_path,
        *("--sizes", "1KiB", "--ops", "permute", "--repeats", "1"),
        *("--collectives", "gloo,lockstep"),
        env={"LOCKSTEP_ENGINE": missing, "LOCKSTEP_COLLECTIVES": "gloo"},
    )
    assert done.status == 0, done
    assert "lockstep failed: " in done.stdout
    assert missing in done.stdout
    assert "[1/1] permute 1 KiB: gloo" in done.stderr


@pytest.mark.full
def test_interrupt_stops_all_and_shows_what_there_is(tmp_path: Path) -> None:
    words = ["--sizes", "1KiB:64MiB", "--repeats", "3", "--collectives", "gloo"]
    with Run([*BENCH, *words], os.environ, tmp_path) as run:
        assert run.process.stderr is not None
        for line in run.process.stderr:
            if line.startswith(b"[1/"):
                break
        run.process.send_signal(signal.SIGINT)
        done = run.finish(RUN_SECONDS)
    assert done.status == 130, done
    assert "interrupted; this is what was measured" in done.stderr
    assert "all_reduce" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-n 1 -d 1", "a collective needs at least 2 devices"),
        ("--sizes 1KB", "KiB, MiB or GiB"),
        ("--ops broadcast", "'broadcast' is not a collective; known: all_reduce"),
        ("--collectives nvshmem", "'nvshmem' is not an implementation; known: lockstep"),
        ("--plot x.gif", "must end in .png or .svg"),
        ("--plot /nowhere/x.png", "'/nowhere/x.png': there is no directory '/nowhere'"),
        ("--json /nowhere/x.json", "'/nowhere/x.json': there is no directory '/nowhere'"),
        ("--json /tmp", "'/tmp' is a directory"),
        ("-n 0", "not a whole number, 1 or more"),
        ("--gbit 10", "--gbit is for --hosts"),
        ("--host-counts 2", "--host-counts is for --hosts"),
        ("--hosts a,b --host-counts 3", "there are 2 to 2 hosts"),
        ("--hosts a,b -n 3", "the hosts have 2 slots"),
        ("--hosts a", "at least 2 devices"),
        ("--hosts a,b --collectives mpi", "mpi is for one host"),
        ("--collectives lockstep,plain", "plain is for --hosts"),
        ("--platform cuda -n 4", "4 processes with 1 each need 4 GPUs, and this"),
        ("--platform cuda --collectives nccl,gloo", "gloo is not for GPUs"),
        ("--platform cuda --calibrate", "--calibrate is for CPUs"),
        ("--collectives nccl", "nccl is for --platform cuda"),
        ("--oversubscribe", "--oversubscribe is for --platform cuda"),
    ],
)
def test_options_that_cannot_be(
    words: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    try:
        status = cli.main(["bench", *words.split()])
    except SystemExit as refused:
        status = refused.code
    assert status == 2
    assert text in capsys.readouterr().err
