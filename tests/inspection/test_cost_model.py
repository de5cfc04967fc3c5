"""Predicted times of collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockstep
from lockstep.inspection import cost_model
from lockstep.inspection.cost_model import CostModel


def line(size: float) -> float:
    return 1e-5 + size / 1e9


def measured(op: str) -> list[tuple[str, int, float]]:
    sizes = [4**n for n in range(5, 12)]
    return [(op, size, line(cost_model.bus_bytes(op, size, 2))) for size in sizes]


def test_a_model_predicts_what_it_was_made_of() -> None:
    model = cost_model.fit(measured("all-reduce"), 2, "here")
    for _, size, seconds in measured("all-reduce"):
        assert model.seconds("all-reduce", size, 2, False) == pytest.approx(seconds)
    assert model.seconds("all-gather", 1024, 2, False) is None
    assert model.seconds("all-reduce", 1024, 2, True) is None


def test_its_error_is_that_of_sizes_that_were_left_out() -> None:
    cases = measured("all-reduce")
    exact = cost_model.fit(cases, 2, "here")
    assert exact.worst_error is not None
    assert exact.worst_error < 0.35
    bumpy = [(op, size, s * (2 if at == 3 else 1)) for at, (op, size, s) in enumerate(cases)]
    found = cost_model.fit(bumpy, 2, "here").worst_error
    assert found is not None
    assert 0.4 < found < 0.7


def test_a_time_that_falls_with_the_size_is_noise() -> None:
    sizes = (1024, 4096, 16384)
    times = (1e-5, 4e-5, 1e-5)
    cases = [("all-reduce", size, seconds) for size, seconds in zip(sizes, times, strict=True)]
    model = cost_model.fit(cases, 2, "here")
    found = [model.seconds("all-reduce", size, 2, False) for size in sizes]
    assert found == pytest.approx([1e-5, 2e-5, 2e-5])


def test_above_the_largest_size_the_bandwidth_stays() -> None:
    model = cost_model.fit(measured("all-reduce"), 2, "here")
    largest = 4**11
    once, twice = (model.seconds("all-reduce", largest * n, 2, False) for n in (1, 2))
    assert once is not None
    assert twice == pytest.approx(2 * once)


def test_larger_groups_take_more_rounds() -> None:
    model = CostModel.of_link(1e-5, 1e9)
    two, eight = (model.seconds("all-reduce", 16, n, False) for n in (2, 8))
    assert two is not None
    assert eight == pytest.approx(3 * two, rel=0.01)


def test_a_file_gives_the_same_model_back(tmp_path: Path) -> None:
    model = cost_model.fit(measured("all-reduce"), 2, "here")
    file = cost_model.save(model, tmp_path / "deeper" / "costs.json")
    assert cost_model.load(file) == model


def test_the_users_file_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cost_model.load() is None
    assert cost_model.path() == tmp_path / "lockstep" / "costs.json"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "other"}'])
def test_another_file_is_an_error_that_says_what_makes_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(lockstep.ConfigError, match="bench --calibrate"):
        cost_model.load(file)
    with pytest.raises(lockstep.ConfigError, match="no such file"):
        cost_model.load(tmp_path / "nothing")


def test_numbers_of_a_link_must_be_positive() -> None:
    with pytest.raises(ValueError, match="bandwidth must be above 0"):
        CostModel.of_link(1e-5, 0)
