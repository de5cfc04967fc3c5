"""The commands by which the pages' numbers were measured, with fewer and smaller cases.

The benchmarks are copied, because one of them writes its results beside itself. What they measure
is not looked at; that each prints its rows is.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import ssh_hosts
from lanes import needs
from page_commands import ROOT, in_sentences, listed_lines, output_of

PAGES = (ROOT / "docs").rglob("*.md")
SECONDS = 240
SMALLER = {
    "bootstrap_messages.py": "4",
    "between_hosts.py": "--collectives all_reduce --sizes 1KiB --rounds 1",
    "check_replicas.py": "--rounds 1 --steps 3",
    "compile_once.py": "--processes 2 --layers 1 --ways barrier lockstep",
    "faults.py": "--only shape --collectives lockstep",
    "long_run.py": "--share 0.001",
    "neighbours.py": "--steps 30 --repeats 1 --collectives gloo",
    "waiting.py": "--seconds 1",
    "gloo_versions.py": "--pythons python --mib 0.1 --executions 2 --rounds 1",
    "linalg.py": "--sizes 256 --rounds 1 --repeats 1",
    "linalg_accuracy.py": "--n 32 --only Hilbert",
    "linalg_grids.py": "--n 64 --panels 2 --devices 4",
    "linalg_growth.py": "--smallest 128",
    "program_records.py": "--layers 2 --blocks",
    "restart.py": "--processes 2 --runs 1",
    "start.py": "--repeats 1",
    "start_between_hosts.py": "--hosts 2 --processes 1",
}
"""Options in the place of those of a page."""
PRINTS = {
    "bootstrap_messages.py": r"^4 processes: \d+ calls each",
    "between_hosts.py": r"^all_reduce +1 KiB +\d",
    "check_replicas.py": r"^--check-replicas 1 +\d",
    "compile_once.py": r"^lockstep +second +\d.* compiled 0 0$",
    "faults.py": r"^\| .*\| .*\|$",
    "gloo_versions.py": r"^\| \d[\d.]+ \| (yes|no) \| 0 of 2 \| 0 of 2 \|$",
    "launcher_on_hosts.py": r'^ "descriptors": \{$',
    "linalg.py": r"^\w+ +256 ",
    "linalg_accuracy.py": r"^\| Hilbert( \| \d[\d.]*){8} \|$",
    "linalg_grids.py": r"^(routine=(potrf|cholesky) layout=grid devices=4 |\| 1024 \|)",
    "linalg_growth.py": r"^ *(inverse|sweeps|factor|\d+) +\d+ +\d",
    "long_run.py": r'^gloo growth: \{"rss": -?\d+',
    "model_between_hosts.py": r"^(all results are right|8 hosts: off by|\| 1024 \|)",
    "program_records.py": r"^ +2 layers: \d",
    "restart.py": r"^\| first step \| \d.* \|$",
    "start.py": r"^lockstep run +\d",
    "start_between_hosts.py": r"^(tls|plain|gloo) +\d",
    "neighbours.py": r'^hosts gloo \{"step_alone": 0\.\d',
    "waiting.py": r'^gloo \{"share_of_a_core": \[0\.\d',
    "speed": r"^AES-128-GCM +\d",
}
"""A line of the output of each."""
ON_HOSTS = ("between_hosts.py", "neighbours.py", "start_between_hosts.py")


def smaller(line: str) -> str:
    """The same command for layouts of at most two hosts, processes and devices, and less work."""
    name = Path(line.split()[1]).name
    line = line.partition("  #")[0].strip()
    line = (
        line.replace("16 64 128 256", "1 2 3")
        .replace("--compile 1024 8192", "--compile 128")
        .replace("8,100,1024", "8,100")
    )
    if name in ON_HOSTS and (hosts := re.search(r"--hosts (\S+)", line)):
        layouts = dict.fromkeys(re.sub("[48]", "2", hosts[1]).split(","))
        line = line.replace(hosts[0], f"--hosts {','.join(layouts)}")
    options = SMALLER.get(name, "") if "--hosts" not in line or name in ON_HOSTS else ""
    for option in re.findall(r"--[a-z]+", options):
        line = re.sub(rf" {option} [^-]*(?= --|$)", "", line)
    return f"{line} {options}".strip()


def measurements(page: str) -> list[str]:
    lines = [*listed_lines(page), *in_sentences(page)]
    return [line for line in lines if re.match(r"python benchmarks/\w+\.py|openssl speed", line)]


LINES = [line for page in PAGES for line in measurements(page.read_text())]


def case(line: str) -> object:
    name = Path(line.split()[1]).name
    on_hosts = needs(ssh_hosts.possible(), "needs root, openssh-server and namespaces: .ci/tools")
    marks = [pytest.mark.full, *([on_hosts] if name in ON_HOSTS else [])]
    return pytest.param(name, line, id=line, marks=marks)


def test_every_kind_is_found() -> None:
    assert {Path(line.split()[1]).name for line in LINES} == set(PRINTS)


@pytest.mark.parametrize(("name", "line"), [*map(case, sorted({*map(smaller, LINES)}))])
def test_a_measurement_prints_its_rows(name: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    for folder in ("tests", "scripts", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    output = output_of(f"{line} && echo all done", tmp_path, SECONDS)
    assert re.search(PRINTS[name], output, re.M), output
    assert output.endswith("all done\n"), output
