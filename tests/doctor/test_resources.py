"""Judgement on cores, memory and shared memory, from made-up facts; the probes, for real."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from doctor.judged import assert_judged
from lockstep._finding import Finding
from lockstep.doctor import resources
from lockstep.system import machine

GIB = 1 << 30
GOOD = resources.ResourceFacts(
    cores=8,
    usable_cores=8,
    cpu_quota=None,
    memory=64 * GIB,
    available=48 * GIB,
    memory_limit=None,
    huge_pages="madvise",
    tunables="",
    libc=("glibc", "2.36"),
    memfd_error="",
    foreign_memfd_error="",
    dev_shm=(64 << 20, 64 << 20),
    files=1024,
)
CHECKS = (
    resources.check_cores,
    resources.check_memory,
    resources.check_huge_pages,
    resources.check_shared_memory,
    resources.check_open_files,
)


def test_a_good_machine_is_ok() -> None:
    assert [check(GOOD).status for check in CHECKS] == ["ok"] * len(CHECKS)


@pytest.mark.parametrize(
    ("check", "change", "status", "found", "fix"),
    [
        (resources.check_cores, {"usable_cores": 1}, "warning", "1 of 8 cores", "share one core"),
        (resources.check_cores, {"cpu_quota": 1.5}, "warning", "allows 1.5", "--cpus"),
        (resources.check_cores, {"cpu_quota": 16.0}, "ok", "allows 16", ""),
        (resources.check_memory, {"available": GIB // 2}, "warning", "512 MiB", "300 MiB"),
        (resources.check_memory, {"memory_limit": 4 * GIB}, "ok", "allows 4 GiB", ""),
        (resources.check_memory, {"memory": None}, "ok", "not known", ""),
        (resources.check_huge_pages, {"huge_pages": "never"}, "warning", "off", "echo madvise"),
        (resources.check_huge_pages, {"libc": ("glibc", "2.31")}, "warning", "2.31", "newer"),
        (resources.check_huge_pages, {"libc": ("", "")}, "warning", "not glibc", "glibc"),
        (
            resources.check_huge_pages,
            {"tunables": "glibc.malloc.hugetlb=0"},
            "warning",
            "turns glibc.malloc.hugetlb off",
            "from GLIBC_TUNABLES",
        ),
        (resources.check_huge_pages, {"huge_pages": ""}, "ok", "not shown", ""),
        (
            resources.check_shared_memory,
            {"memfd_error": "[Errno 38] Function not implemented"},
            "problem",
            "Function not implemented",
            "seccomp",
        ),
        (
            resources.check_shared_memory,
            {"foreign_memfd_error": "[Errno 13] Permission denied"},
            "problem",
            "Permission denied",
            "one user",
        ),
        (resources.check_shared_memory, {"dev_shm": None}, "ok", "memfd works", ""),
        (resources.check_open_files, {"files": 256}, "warning", "at most 256", "ulimit -n"),
    ],
)
def test_what_is_not_as_it_should_be(
    check: Callable[[resources.ResourceFacts], Finding],
    change: dict[str, object],
    status: str,
    found: str,
    fix: str,
) -> None:
    facts = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]  # any field
    assert_judged(check(facts), status, found, fix)


def test_shared_memory_works_on_the_machine_of_the_test() -> None:
    assert resources.probe_memfd() == ""
    assert resources.probe_foreign_memfd() == ""


@pytest.mark.parametrize(
    ("v2", "v1", "cores"),
    [
        ("150000 100000\n", ("", ""), 1.5),
        ("max 100000\n", ("", ""), None),
        ("", ("50000", "100000"), 0.5),
        ("", ("-1", "100000"), None),
        ("", ("", ""), None),
    ],
)
def test_cpu_quota_of_both_versions(v2: str, v1: tuple[str, str], cores: float | None) -> None:
    assert machine.parse_cpu_quota(v2, *v1) == cores


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("4294967296\n", 4 * GIB), ("9223372036854771712\n", None), ("", None)],
)
def test_memory_limit(text: str, limit: int | None) -> None:
    assert machine.parse_memory_limit(text) == limit


def test_cpu_model() -> None:
    text = (
        "processor : 0\nmodel name\t: AMD EPYC 7763\nprocessor : 1\nmodel name\t: AMD EPYC 7763\n"
    )
    assert machine.parse_cpu_model(text) == "AMD EPYC 7763"
    assert machine.parse_cpu_model("processor : 0\nBogoMIPS : 50.00\n") == ""


def test_this_machine_has_memory_and_a_processor() -> None:
    facts = machine.describe()
    assert facts["cpu"]
    assert facts["memory"] > 0
    assert 0 < resources.probe().available <= facts["memory"]
