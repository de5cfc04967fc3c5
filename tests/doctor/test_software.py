"""Judgement on versions and settings, from made-up facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from doctor.judged import assert_judged
from lockstep import _jax_compat
from lockstep._finding import Finding, ok, problem
from lockstep.doctor import software
from lockstep.doctor.software import check_jaxlib, check_python

GOOD = software.SoftwareFacts((3, 12, 1), "/usr/bin/python3", "Linux", "x86_64", "0.10.2", "0.10.2")

WORKS = ok("a collective", "")
CRASHES = {"jax": "0.11.2", "jaxlib": "0.11.2"}
LATER = ".".join(map(str, (*software.NEWEST_TESTED_JAX, 99)))


def changed(**values: object) -> software.SoftwareFacts:
    return dataclasses.replace(GOOD, **values)  # type: ignore[arg-type]


def check_jax(facts: software.SoftwareFacts, collective: Finding = WORKS) -> Finding:
    return software.check_jax(facts, lambda: collective)


def test_a_good_installation_is_ok() -> None:
    for check in (check_python, check_jax, check_jaxlib):
        assert check(GOOD).status == "ok"
        assert not check(GOOD).fix


@pytest.mark.parametrize(
    ("check", "change", "status", "found", "fix"),
    [
        (check_python, {"python": (3, 10, 4)}, "problem", "needs 3.11 or later", ""),
        (check_python, {"system": "Darwin"}, "problem", "runs on Linux", ""),
        (check_python, {"machine": "riscv64"}, "problem", "x86_64 and aarch64", ""),
        (check_jax, {"jax": None}, "problem", "not installed", ""),
        (check_jax, {"jax": "0.7.2"}, "problem", "0.8 is the oldest", ""),
        (check_jax, {"jax": "0.8.0"}, "ok", "0.8.0", ""),
        (check_jax, {"jax": "0.10.2.dev20260101"}, "ok", "0.10.2.dev", ""),
        (check_jax, {"jax": LATER}, "ok", LATER, ""),  # of a tested series
        (check_jax, {"jax": "0.99.0"}, "warning", "the newest tested version", ""),
        (check_jaxlib, {"jaxlib": None}, "problem", "not installed", "pip install"),
        (check_jaxlib, {"jaxlib": "0.10.1"}, "warning", "but jax is 0.10.2", "pip install"),
        (check_jaxlib, {"jaxlib": "0.11.0"}, "problem", "jax refuses a newer jaxlib", "pip"),
        (check_jaxlib, CRASHES, "warning", "XLA crashes", ""),
    ],
)
def test_versions_that_fit_and_that_do_not(
    check: Callable[[software.SoftwareFacts], Finding],
    change: dict[str, object],
    status: str,
    found: str,
    fix: str,
) -> None:
    assert_judged(check(changed(**change)), status, found, fix)


def test_a_failed_collective_with_a_jax_that_is_too_new_is_a_problem_of_that_jax() -> None:
    failed = problem("a collective", "a psum over 2 devices failed: SIGSEGV", "see above")
    finding = check_jax(changed(jax="0.99.0"), failed)
    assert_judged(finding, "problem", "a psum over 2 devices failed: SIGSEGV")
    assert finding.found.startswith("0.99.0: newer than ")
    assert finding.fix == _jax_compat.pin()
    assert check_jax(GOOD, failed).status == "ok"


def test_that_problem_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "probe", lambda: changed(jax="0.99.0", jaxlib="0.99.0"))
    monkeypatch.setattr(software.engine, "probe_smoke", lambda: {"error": "signal 11"})
    assert [finding.name for finding in software.findings()][:2] == ["jax", "Python"]


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({}, "ok", "none set"),
        ({"LOCKSTEP_COLLECTIVES": "gloo"}, "ok", "LOCKSTEP_COLLECTIVES"),
        ({"LOCKSTEP_COLLECTIVES": "nccl"}, "problem", "one of lockstep, gloo, mpi"),
        ({"LOCKSTEP_COLECTIVES": "gloo"}, "problem", "not a variable of Lockstep"),
    ],
)
def test_settings_are_read_as_a_process_would(
    environ: dict[str, str], status: str, words: str
) -> None:
    finding = software.check_settings(environ)
    assert_judged(finding, status, words)
    assert finding.fix == (f"unset {next(iter(environ))}" if status == "problem" else "")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}, "lockstep run --collectives sets it"),
        ({"JAX_NUM_CPU_DEVICES": "4"}, "lockstep run -d sets it"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, "remove it from XLA_FLAGS"),
    ],
)
def test_settings_of_jax_that_work_against_the_launcher(
    environ: dict[str, str], words: str
) -> None:
    assert_judged(software.check_jax_settings(environ), "warning", fix=words)


def test_other_settings_of_jax_are_left_alone() -> None:
    environ = {"XLA_FLAGS": "--xla_dump_to=/x", "JAX_ENABLE_X64": "1"}
    assert software.check_jax_settings(environ).status == "ok"
