"""``lockstep bench --calibrate`` turns measured cases into the costs of `lockstep inspect`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.bench import calibrate
from lockstep.bench.cases import HLO_NAMES, OPS, Case
from lockstep.bench.runner import CaseResult, Measurement
from lockstep.inspection import cost_model


def results(status: str = "ok") -> list[CaseResult]:
    found = []
    for op in OPS:
        for size in (1024, 4096, 16384, 65536):
            case = Case.of_size(op, size, 2, "f32")
            seconds = 1e-5 + case.bus_bytes / 1e9
            measured = Measurement(status=status, blocks=[[9 * seconds], [seconds, seconds], []])
            found.append(CaseResult(case, {"lockstep": measured}))
    return found


def test_each_measured_case_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert calibrate.write(results(), "lockstep")
    said = capsys.readouterr().err
    assert str(tmp_path / "lockstep" / "costs.json") in said
    assert "at worst" in said
    model = cost_model.load()
    assert model is not None
    for result in results():
        case = result.case
        predicted = model.seconds(HLO_NAMES[case.op], case.bytes, 2, False)
        assert predicted == pytest.approx(1e-5 + case.bus_bytes / 1e9)


def test_costs_between_hosts_and_within_one_are_kept_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for between in (True, False, True):
        assert calibrate.write(results(), "lockstep", between)
    model = cost_model.load()
    assert model is not None
    assert model.within.keys() == model.between.keys() == set(cost_model.OPS)


def test_nothing_measured_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert not calibrate.write(results("failed"), "lockstep")
    assert "nothing was measured" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
