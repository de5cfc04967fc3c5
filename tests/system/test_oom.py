"""Whether memory ran out, from the files in which the kernel counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep._errors import LaunchError
from lockstep.launch.before_start import check_memory
from lockstep.system.oom import OomKills, counters, free_memory


def test_only_a_new_kill_counts(tmp_path: Path) -> None:
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom 7\noom_kill 3\noom_group_kill 0\n")
    kills = OomKills([file])
    assert not kills.new()
    file.write_text("low 0\noom 8\noom_kill 4\noom_group_kill 0\n")
    assert kills.new()
    assert not kills.new()


def test_our_own_limit_counts_before_the_whole_machine(tmp_path: Path) -> None:
    own, machine = tmp_path / "own", tmp_path / "machine"
    own.write_text("oom_kill 0\n")
    machine.write_text("oom_kill 0\n")
    kills = OomKills([tmp_path / "missing", own, machine])
    machine.write_text("oom_kill 1\n")
    assert not kills.new()
    own.write_text("oom_kill 1\n")
    assert kills.new()


def test_where_nothing_counts_nothing_is_said(tmp_path: Path) -> None:
    assert not OomKills([tmp_path / "missing"]).new()


def test_the_files_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:cpu,memory:/batch/job_7\n1:cpu:/x\n0::/step\n")
    groups = tmp_path / "groups"
    assert counters(tmp_path, groups) == [
        groups / "memory/batch/job_7/memory.oom_control",
        groups / "memory/memory.oom_control",
        groups / "step/memory.events",
        groups / "memory.events",
        tmp_path / "vmstat",
    ]


def machine(folder: Path, group: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Stands for /proc and /sys/fs/cgroup of a machine with 1000 MB of free memory."""
    (folder / "self").mkdir()
    (folder / "self" / "cgroup").write_text(group)
    (folder / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {1000 << 10} kB\n")
    for name, text in files.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder, folder / "groups"


def test_free_memory_is_that_of_the_machine_without_a_limit(tmp_path: Path) -> None:
    unlimited = {"job/memory.max": "max\n", "job/memory.current": "5\n"}
    assert free_memory(*machine(tmp_path, "0::/job\n", unlimited)) == 1000 << 20
    assert free_memory(tmp_path / "no", tmp_path / "no") is None


def test_free_memory_is_that_of_the_smallest_group_above(tmp_path: Path) -> None:
    mb = 1 << 20
    files = {
        "batch/memory.max": f"{500 * mb}\n",
        "batch/memory.current": f"{300 * mb}\n",
        "batch/memory.stat": f"inactive_anon 7\ninactive_file {50 * mb}\n",
        "batch/job/memory.max": f"{900 * mb}\n",
        "batch/job/memory.current": "0\n",
    }
    assert free_memory(*machine(tmp_path, "0::/batch/job\n", files)) == 250 << 20


def test_free_memory_within_a_group_of_version_1(tmp_path: Path) -> None:
    mb = 1 << 20
    files = {
        "memory/job/memory.limit_in_bytes": f"{600 * mb}\n",
        "memory/job/memory.usage_in_bytes": f"{400 * mb}\n",
        "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {10 * mb}\n",
    }
    assert free_memory(*machine(tmp_path, "4:memory:/job\n0::/\n", files)) == 210 << 20


def test_processes_that_do_not_fit_are_refused_with_the_number_that_does() -> None:
    check_memory(5, 1000 << 20)
    check_memory(1, 10 << 20)
    check_memory(6, None)
    with pytest.raises(LaunchError, match=r"-n 6: 1000 MB .* room for 5\. .*--oversubscribe"):
        check_memory(6, 1000 << 20)
