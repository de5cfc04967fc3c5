"""Whether memory ran out, from the files in which the kernel counts."""

from __future__ import annotations

from pathlib import Path

from lockstep.launch.memory import OomKills, counters


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
