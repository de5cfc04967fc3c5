"""The manifests of docs/how-to/kubeflow.md: valid for Kubeflow and Kubernetes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.test_kubernetes import check_key, check_model, options_of, validate
from page_commands import files
from page_environments import commands_of
from processes import captured

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kubeflow.md").read_text()
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}}
READ = """
import json, sys, types
from kubeflow.training.api_client import ApiClient
client = ApiClient()
job = client.deserialize(types.SimpleNamespace(data=sys.argv[1]), "KubeflowOrgV1JAXJob")
print(json.dumps(client.sanitize_for_serialization(job)))
"""
"""The operator's model checks types, and drops fields that it does not know."""


def document(title: str) -> dict[str, Any]:
    return yaml.safe_load(files(PAGE)[title])


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
    # The Trainer sets the variables of the container with this name.
    assert replicated["name"] == pod["containers"][0]["name"] == "node"
    check_key(pod, PAGE)


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


def test_the_jaxjob() -> None:
    worker = document("jaxjob.yaml")["spec"]["jaxReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    validate({**JOB, "spec": {"template": {"spec": {**pod, "restartPolicy": "Never"}}}})
    # The operator sets the variables of the container with this name.
    assert pod["containers"][0]["name"] == "jax"
    check_key(pod, PAGE)
    options_of(pod["containers"][0]["command"])


@pytest.mark.full
@pytest.mark.timeout(600)  # the first run installs the model
def test_the_operator_reads_the_jaxjob() -> None:
    version = re.search(r"`kubeflow-training` (\d[\d.]+\d)\)", PAGE)
    assert version, "the page does not say which model"
    python = commands_of(f"kubeflow-training=={version[1]}") / "python"

    def read(job: dict[str, Any]) -> str:
        done = captured([python, "-c", READ, json.dumps(job)], timeout=100)
        return done.stdout + done.stderr

    job = document("jaxjob.yaml")
    assert json.loads(read(job)) == job
    job["spec"]["jaxReplicaSpecs"]["Worker"]["replica"] = 4
    assert json.loads(read(job)) != job
    del job["spec"]["jaxReplicaSpecs"]
    assert "jax_replica_specs" in read(job)
