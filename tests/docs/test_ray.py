"""The program of docs/how-to/ray.md, on two raylets of this machine, with the Ray that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from page_commands import ROOT, output_of
from page_environments import commands_of

PAGE = (ROOT / "docs" / "how-to" / "ray.md").read_text()
ON_TWO_NODES = """
import os, runpy, ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
try:
    runpy.run_path("ray_train.py", run_name="__main__")
    print("nodes:", len(ray.nodes()))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.full
@pytest.mark.timeout(900)  # the first run installs Ray
def test_the_program_on_two_nodes(tmp_path: Path) -> None:
    version = re.search(r"with Ray (\d+\.\d+\.\d+) on two raylets", PAGE)
    assert version
    bin = commands_of(f"ray[train]=={version[1]}")
    (tmp_path / "nodes.py").write_text(ON_TWO_NODES)
    # Ray lowers the priority of its workers, which then starve beside other programs.
    settings = "HOME=$PWD RAY_DEDUP_LOGS=0 RAY_worker_niceness=0"
    output = output_of(f"{settings} python nodes.py", tmp_path, 300, bin)
    assert "\nnodes: 2\n" in output, output
    [shown] = re.findall(r"^```text\n(.*)\n```$", PAGE, re.M)
    said = re.findall(r"pid=(\d+)\S*\)\S* " + re.escape(shown), output)
    assert len(set(said)) == 2, output
