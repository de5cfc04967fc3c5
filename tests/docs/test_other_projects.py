"""docs/how-to/testing.md, "Tried on other projects": its lines, on suites that stand for those.

A suite has the folders and the names that the page shows, and a few tests with the outcomes that it
shows. The projects' own suites are in their repositories, which a test does not reach.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from page_commands import ROOT, missing, output_of
from page_environments import commands_of

PAGE = (ROOT / "docs" / "how-to" / "testing.md").read_text()
SECONDS = 150
NETKET = """\
import jax
import netket as nk
import numpy as np
import pytest


def test_the_samples_are_sharded():
    assert nk.config.netket_experimental_sharding
    assert jax.device_count() == 4 and jax.local_device_count() == 2
    sampler = nk.sampler.MetropolisLocal(nk.hilbert.Spin(0.5, 4), n_chains=16)
    state = nk.vqs.MCState(sampler, nk.models.RBM(), n_samples=64, seed=1)
    assert len(state.samples.sharding.device_set) == 4
    energy = nk.operator.Ising(sampler.hilbert, nk.graph.Chain(4), 1.0)
    assert np.isfinite(state.expect(energy).mean)


@pytest.mark.skipif(jax.process_count() > 1, reason="for several devices of one process")
def test_of_one_process():
    raise AssertionError
"""
JAX = {
    "array_test.py": """\
import jax
import jax.numpy as jnp
from jax._src import test_multiprocess as jt_multiprocess
from jax.experimental import multihost_utils


class NonaddressableArrayTestMultiHost(jt_multiprocess.MultiProcessTest):
    def test_gather(self):
        mine = jnp.array([jax.process_index()])
        ranks = multihost_utils.process_allgather(mine).ravel().tolist()
        self.assertEqual(ranks, list(range(jt_multiprocess.NUM_PROCESSES.value)))

    def test_device_get_sharded(self):
        if jax.process_index() == 0:
            with self.assertRaises(RuntimeError):
                jax.device_get(jnp.ones(2))

    def test_of_eight_devices(self):
        self.skipTest("needs eight devices")
""",
    "tpu_device_test.py": """\
from jax._src import test_multiprocess as jt_multiprocess


class TpuDeviceTest(jt_multiprocess.MultiProcessTest):
    def test_fails_everywhere(self):
        self.fail("in JAX's own runner too")
""",
}


def listing(start: str) -> tuple[str, tuple[str, ...]]:
    """The command that begins so, and the lines that the page shows under it."""
    [(line, shown)] = re.findall(rf"^    ({start}.*)\n\n((?:    .*\n)+)", PAGE, re.M)
    return line, tuple(re.findall(r"^    (.*)$", shown, re.M))


@pytest.mark.full
@pytest.mark.timeout(900)  # the first run installs NetKet
def test_netket(tmp_path: Path) -> None:
    versions = re.search(r"NetKet (\S+) with jax (\S+),", PAGE)
    assert versions, "the page does not say which NetKet"
    packages = [f"{name}=={versions[2]}" for name in ("jax", "jaxlib")]
    bin = commands_of(f"netket=={versions[1]}", *packages)
    [install] = re.findall(r"^    (pip install netket==.*)$", PAGE, re.M)
    line, shown = listing("NETKET_")
    folder = tmp_path / "test" / "sharding"
    folder.mkdir(parents=True)
    (folder / "test_samples.py").write_text(NETKET)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -n auto\n")
    output = output_of(f"{install} && {line}", tmp_path, SECONDS, bin)
    assert missing(shown, output) == [], output


@pytest.mark.full
def test_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, shown = listing("lockstep run .*-p jax_flags")
    [plugin] = re.findall(r"`jax_flags.py` on the `PYTHONPATH`:\n\n```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "jax_flags.py").write_text(plugin)
    folder = tmp_path / "tests" / "multiprocess"
    folder.mkdir(parents=True)
    for name, text in JAX.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugins"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the records of the tests that fail
    output = output_of(line, tmp_path, SECONDS)
    assert missing(shown, output) == [], output
    assert re.search(r"rank 0: 2 failed, 1 passed, 1 skipped", output), output
