"""The lines of docs/design/jax-multiprocess-tests.md, on a repository that stands for JAX's.

It has the tag that the page names, and tests for JAX's own runner, which is that of the installed
jax. JAX's own tests are in its repository, which a test does not reach: git is told to take the
other one for it.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

import ucx
from lanes import needs
from page_commands import ROOT, listed_lines, output_of
from page_environments import commands_of

PAGE = (ROOT / "docs" / "design" / "jax-multiprocess-tests.md").read_text()
LINES = listed_lines(PAGE)
SECONDS = 400
TESTS = {
    "all_reduce_test.py": """\
import jax
from jax._src import test_multiprocess as jt_multiprocess
from jax.sharding import PartitionSpec as P


class AllReduceTest(jt_multiprocess.MultiProcessTest):
    def test_sum(self):
        mesh = jax.make_mesh((jax.device_count(),), ("x",))
        total = jax.jit(jax.shard_map(lambda: jax.lax.psum(1.0, "x"), mesh=mesh, in_specs=(),
                                      out_specs=P()))()
        self.assertEqual(float(total), jax.device_count())


if __name__ == "__main__":
    jt_multiprocess.main()
""",
    "array_test.py": """\
import jax
from jax._src import test_multiprocess as jt_multiprocess
from jax.experimental import multihost_utils


class ArrayTest(jt_multiprocess.MultiProcessTest):
    def test_gather(self):
        mine = jax.numpy.array([jax.process_index()])
        ranks = multihost_utils.process_allgather(mine).ravel().tolist()
        self.assertEqual(ranks, list(range(jt_multiprocess.NUM_PROCESSES.value)))

    def test_for_two_processes(self):
        if jt_multiprocess.NUM_PROCESSES.value != 2:
            self.skipTest("needs 2 processes")


if __name__ == "__main__":
    jt_multiprocess.main()
""",
}
COUNTS = {
    ("all_reduce", True): "1 / 0 / 0",
    ("all_reduce", False): "1 / 0 / 0",
    ("array", True): "2 / 0 / 0",
    ("array", False): "1 / 0 / 1",
}
"""Passed, failed and skipped of a file, with two processes and with more."""

pytestmark = [pytest.mark.full, needs(ucx.is_here(), ucx.WHY)]


def matching(pattern: str) -> list[str]:
    return [line for line in LINES if re.match(pattern, line)]


RUNS = matching("python scripts/")


def size(line: str) -> str:
    return re.sub(r".*/tmp/jax *| *(#|--files).*", "", line) or "-n 2 -n 4"


def repository(folder: Path, tag: str) -> None:
    """A repository in which ``tag`` has the tests."""
    tests = folder / "tests" / "multiprocess"
    tests.mkdir(parents=True)
    for name, text in TESTS.items():
        (tests / name).write_text(text)
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tests"], ["tag", tag]):
        subprocess.run(["git", *author, *words], cwd=folder, check=True, timeout=SECONDS)


@pytest.fixture(scope="module")
def bin() -> Path:
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
    return commands_of(*versions)


@pytest.fixture
def jax_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the line that clones JAX's repository clone ours, and returns it."""
    [clone] = matching("git clone ")
    found = re.search(r"--branch (\S+) https://github.com/(\S+) ", clone)
    assert found, clone
    repository(tmp_path / "github" / found[2], found[1])
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{tmp_path}/github/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    return clone


def rows(line: str) -> list[str]:
    """The rows that the script prints for our tests, of one command of the page."""
    files = re.findall(r"\w+", (re.findall(r"--files (.*)", line) or ["all_reduce array"])[0])
    columns = max(line.count("--collectives"), 2)
    sizes = [int(n) for n in re.findall(r"-n (\d+)", line)] or [2, 4]
    names = [name for name in ("all_reduce", "array") if name in files]
    return [
        f"| {name}_test | {' | '.join([COUNTS[name, n == 2]] * columns)} |"
        for n in sizes
        for name in names
    ]


def test_the_page_has_every_kind_of_line() -> None:
    assert len(RUNS) == 5
    assert len(matching("git clone ")) == len(matching("pip install ")) == 1


@pytest.mark.timeout(900)  # the first run installs jax
@pytest.mark.parametrize("line", RUNS, ids=[size(run) for run in RUNS])
def test_a_line_runs_the_tests(line: str, jax_is_here: str, bin: Path, tmp_path: Path) -> None:
    [install] = matching("pip install ")
    script = f"set -e\n{jax_is_here}\n{install}\n{line}\necho status 0"
    output = output_of(script, tmp_path, SECONDS, bin)
    assert re.findall(r"^\| \w+_test .*$", output, re.M) == rows(line), output
    assert output.endswith("status 0\n"), output
