"""The manifests of docs/how-to/kubeflow.md: valid for Kubeflow Trainer and Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.test_kubernetes import check_model, options_of, validate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kubeflow.md").read_text()
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}}


def document(title: str) -> dict[str, Any]:
    found = re.search(rf'^```yaml title="{title}"\n(.*?)^```$', PAGE, re.M | re.S)
    assert found, f"docs/how-to/kubeflow.md has no {title}"
    return yaml.safe_load(found[1])


@pytest.mark.full
def test_the_runtime() -> None:
    runtime = document("runtime.yaml")
    check_model("TrainerV1alpha1TrainingRuntime", runtime)
    assert runtime["spec"]["mlPolicy"]["jax"] == {}
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {**JOB, **replicated["template"]}
    validate(job)
    pod = job["spec"]["template"]["spec"]
    [container], [volume] = pod["containers"], pod["volumes"]
    # The Trainer sets the variables of the container with this name.
    assert replicated["name"] == container["name"] == "node"
    [variable], [mount] = container["env"], container["volumeMounts"]
    assert variable["name"] == "LOCKSTEP_KEY_FILE"
    assert variable["value"] == f"{mount['mountPath']}/key"
    assert mount["name"] == volume["name"]
    assert volume["secret"]["defaultMode"] == 0o400
    assert f"secret generic {volume['secret']['secretName']} --from-file=key=" in PAGE


def test_the_job() -> None:
    job = document("trainjob.yaml")
    check_model("TrainerV1alpha1TrainJob", job)
    runtime = document("runtime.yaml")
    named = {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    assert job["spec"]["runtimeRef"] == named
    container = {"name": "node", "image": "a", "command": job["spec"]["trainer"]["command"]}
    container["resources"] = job["spec"]["trainer"]["resourcesPerNode"]
    pod = {"containers": [container], "restartPolicy": "Never"}
    validate({**JOB, "spec": {"template": {"spec": pod}}})
    options_of(container["command"])


@pytest.mark.parametrize("field", ["numNode", "commands"])
def test_the_model_refuses_what_is_wrong(field: str) -> None:
    """So that the tests above mean something."""
    job = document("trainjob.yaml")
    job["spec"]["trainer"][field] = job["spec"]["trainer"].pop("numNodes")
    with pytest.raises(AssertionError):
        check_model("TrainerV1alpha1TrainJob", job)
