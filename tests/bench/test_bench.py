"""The command for real: options, a small run, an implementation that fails, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli
from support import MARK, marked, wait_until

RUN_SECONDS = 240.0


class Bench:
    """A running ``lockstep bench`` whose processes can be found by a mark."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockstep", "bench", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {}), MARK: self.mark},
        )

    def finish(self) -> tuple[int, str, str]:
        """Status, stdout and stderr; fails when it does not end, or leaves a process behind."""
        try:
            out, err = self.process.communicate(timeout=RUN_SECONDS)
            wait_until(lambda: not marked(self.mark), "a process of the benchmark is still there")
            return self.process.returncode, out, err
        finally:
            for pid in marked(self.mark):
                os.kill(pid, signal.SIGKILL)


def bench(*args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    return Bench(*args, env=env).finish()


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
    status, out, err = bench(
        *("-n", "2", "-d", "1", "--sizes", "1KiB,1MiB", "--ops", "all_reduce,permute"),
        *("--collectives", "lockstep,gloo", "--repeats", "2", "--json", str(path)),
    )
    assert status == 0, err
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
    assert "gloo / lockstep" in out
    assert "[4/4] permute 1 MiB: lockstep" in err


@pytest.mark.full
def test_the_other_operations_on_several_devices_and_json_on_stdout() -> None:
    status, out, err = bench(
        *("-n", "2", "-d", "2", "--sizes", "4KiB", "--repeats", "1", "--collectives", "lockstep"),
        *("--ops", "all_gather,reduce_scatter,all_to_all", "--dtype", "i32", "--json", "-"),
    )
    assert status == 0, err
    report = json.loads(out)
    assert [entry["op"] for entry in report["cases"]] == [
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    ]
    for entry in report["cases"]:
        check_result(entry["results"]["lockstep"], blocks=1)


@pytest.mark.full
def test_xla_by_itself_has_all_devices_in_one_process(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    status, _, err = bench(
        *("--sizes", "1KiB", "--ops", "permute", "--repeats", "1"),
        *("--collectives", "xla,lockstep", "--json", str(path)),
    )
    assert status == 0, err
    for name in ("xla", "lockstep"):
        check_result(json.loads(path.read_text())["cases"][0]["results"][name], blocks=1)


@pytest.mark.full
def test_an_implementation_that_cannot_start_is_reported_and_the_other_goes_on(
    tmp_path: Path,
) -> None:
    missing = str(tmp_path / "liblockstep.so")
    status, out, err = bench(
        *("--sizes", "1KiB", "--ops", "permute", "--repeats", "1"),
        *("--collectives", "gloo,lockstep"),
        env={"LOCKSTEP_ENGINE": missing, "LOCKSTEP_COLLECTIVES": "gloo"},
    )
    assert status == 0, err
    assert "lockstep failed: " in out
    assert missing in out
    assert "[1/1] permute 1 KiB: gloo" in err


@pytest.mark.full
def test_interrupt_stops_all_and_shows_what_there_is() -> None:
    running = Bench("--sizes", "1KiB:64MiB", "--repeats", "3", "--collectives", "gloo")
    assert running.process.stderr is not None
    for line in running.process.stderr:
        if line.startswith("[1/"):
            break
    running.process.send_signal(signal.SIGINT)
    status, out, err = running.finish()
    assert status == 130
    assert "interrupted; this is what was measured" in err
    assert "all_reduce" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-n", "1", "-d", "1"), "a collective needs at least 2 devices"),
        (("--sizes", "1KB"), "KiB, MiB or GiB"),
        (("--ops", "broadcast"), "'broadcast' is not a collective; known: all_reduce"),
        (("--collectives", "nvshmem"), "'nvshmem' is not an implementation; known: lockstep"),
        (("--plot", "x.gif"), "must end in .png or .svg"),
        (("--plot", "/nowhere/x.png"), "'/nowhere/x.png': there is no directory '/nowhere'"),
        (("--json", "/nowhere/x.json"), "'/nowhere/x.json': there is no directory '/nowhere'"),
        (("--json", "/tmp"), "'/tmp' is a directory"),
        (("-n", "0"), "not a whole number, 1 or more"),
    ],
)
def test_options_that_cannot_be(
    args: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["bench", *args])
    except SystemExit as refused:
        status = refused.code
    assert status == 2
    assert words in capsys.readouterr().err
