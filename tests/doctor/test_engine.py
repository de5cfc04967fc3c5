"""Judgement on the engine, from made-up facts; the look-up, on real libraries."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.judged import assert_judged
from lockstep._finding import ok
from lockstep.doctor import engine, software
from support import assert_unsaid

GOOD = engine.EngineFacts(
    library=Path("/opt/liblockstep.so"),
    library_error="",
    compiler="/usr/bin/c++",
    jaxlib=Path("/opt/jaxlib/libjax_common.so"),
    wanted=640,
    lookup={"missing": [], "abi": [2, 9, 0]},
)


NEWER_JAX = software.SoftwareFacts((3, 12, 1), "", "Linux", "x86_64", "0.99.0", "0.99.0")


def changed(**values: object) -> engine.EngineFacts:
    return dataclasses.replace(GOOD, **values)  # type: ignore[arg-type]


def test_an_engine_that_fits_is_ok() -> None:
    assert engine.check_library(GOOD).status == "ok"
    finding = engine.check_abi(GOOD)
    assert_judged(finding, "ok", "all 640 names")
    assert "MPI ABI 2.9.0" in finding.found


def test_a_missing_library_names_the_compiler_only_when_there_is_none() -> None:
    gone = {"library": None, "library_error": "liblockstep.so is not installed", "lookup": {}}
    with_compiler = engine.check_library(changed(**gone))
    without = engine.check_library(changed(**gone, compiler=None))
    assert with_compiler.status == without.status == "problem"
    assert "liblockstep.so is not installed" in without.found
    assert without.fix.startswith("sudo apt-get install g++ && pip install")
    assert with_compiler.fix.startswith("pip install")
    assert "WHEEL, the wheel or source tree" in with_compiler.fix


def test_a_library_that_does_not_load() -> None:
    facts = changed(lookup={"error": "libstdc++.so.6: version `GLIBCXX_3.4.32' not found"})
    assert "GLIBCXX_3.4.32" in engine.check_library(facts).found
    assert engine.check_abi(facts).status == "problem"


def test_names_that_the_engine_lacks_are_counted_and_shown() -> None:
    missing = ["MPIABI_Allreduce", "MPIABI_B", "MPIABI_C", "MPIABI_D"]
    finding = engine.check_abi(changed(lookup={"missing": missing, "abi": [2, 9, 0]}))
    assert_judged(finding, "problem", "4 names")
    assert "MPIABI_Allreduce" in finding.found
    assert "MPIABI_D" not in finding.found


@pytest.mark.parametrize(
    ("abi", "status"),
    [([2, 9, 0], "ok"), ([2, 10, 1], "ok"), ([2, 8, 0], "problem"), ([3, 0, 0], "problem")],
)
def test_abi_version(abi: list[int], status: str) -> None:
    finding = engine.check_abi(changed(lookup={"missing": [], "abi": abi}))
    assert_judged(finding, status, ".".join(map(str, abi)))


def test_a_jaxlib_without_mpi_or_without_its_library() -> None:
    assert "without MPI" in engine.check_abi(changed(wanted=0)).found
    assert engine.check_abi(changed(jaxlib=None)).status == "warning"


def test_the_installed_jaxlib_asks_for_the_names_that_the_design_counts() -> None:
    facts = engine.probe()
    assert facts.jaxlib is not None
    assert facts.wanted > 600


def test_no_advice_needs_a_published_lockstep() -> None:
    lacks = {"missing": ["MPIABI_Send"], "abi": [2, 9, 0]}
    wrong = {"result": [1.0], "expected": [2.0], "engine_calls": 1, "seconds": 1.5}
    for finding in (
        engine.check_abi(changed(jaxlib=None)),
        engine.check_abi(changed(lookup=lacks)),
        engine.check_abi(changed(lookup=lacks | {"missing": [], "abi": [1, 0, 0]})),
        engine.check_smoke(wrong),
        software.check_jax(NEWER_JAX, lambda: ok("a collective", "")),
    ):
        assert finding.status != "ok"
        assert "WHEEL, a newer wheel or source tree of Lockstep" in finding.fix
        assert_unsaid("lockstep-jax", finding.fix)


def test_looking_up_in_a_library_that_is_not_an_mpi() -> None:
    found = engine.look_up("libc.so.6", ["malloc", "MPIABI_Send"])
    assert found["missing"] == ["MPIABI_Send"]
    assert found["abi"] == [-1, -1, -1]
    assert "no_such.so" in engine.look_up("/no_such.so", [])["error"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("raise SystemExit('no room')", "exit 1: no room"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_child_that_fails_is_an_error_in_words(code: str, words: str) -> None:
    answer = engine._answer([sys.executable, "-I", "-c", code], 1.0, {})
    assert words in answer["error"]


RIGHT = {"result": [2.0, 4.0], "expected": [2.0, 4.0], "engine_calls": 2, "seconds": 1.5}


@pytest.mark.parametrize(
    ("answer", "status", "found"),
    [
        (RIGHT, "ok", ""),
        (RIGHT | {"result": [2.0, 5.0]}, "problem", "[2.0, 5.0] and not [2.0, 4.0]"),
        (RIGHT | {"engine_calls": 0}, "problem", "did not go through the engine"),
        ({"error": "exit 1: no engine"}, "problem", "no engine"),
    ],
)
def test_judgement_on_the_collective(answer: dict[str, Any], status: str, found: str) -> None:
    assert_judged(engine.check_smoke(answer), status, found)
