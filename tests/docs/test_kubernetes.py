"""The manifests of docs/how-to/kubernetes.md: valid, consistent, and what `cluster_env` reads."""

from __future__ import annotations

import argparse
import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lockstep.bootstrap.cluster_env import detect
from lockstep.hosts import node_range
from lockstep.launch import options
from page_commands import files

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kubernetes.md").read_text()
VERSIONS = ("1.27", kubernetes_validate.latest_version())
"""The first has the label batch.kubernetes.io/job-name."""
WITH_SUCCESS_POLICY = ("1.31", VERSIONS[-1])
ETC_HOSTS = "10.244.1.7\t{0}.train.default.svc.cluster.local\t{0}\n"


def documents(title: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(files(PAGE)[title]))


def validate(document: dict[str, Any], versions: tuple[str, ...] = VERSIONS) -> None:
    for version in versions:
        kubernetes_validate.validate(document, version, strict=True)


def check_model(name: str, manifest: dict[str, Any]) -> None:
    """The model checks types, and drops fields that it does not know."""
    # Every worker of xdist would import it at collection: a sixth of the time that this takes.
    import kubeflow_trainer_api.models

    made = getattr(kubeflow_trainer_api.models, name).from_dict(copy.deepcopy(manifest))
    known = yaml.safe_load(yaml.safe_dump(made.to_dict()))
    assert known == manifest


def options_of(command: list[str]) -> argparse.Namespace:
    """The options of a container's command, as the command reads them."""
    assert command[:2] == ["lockstep", "worker"]
    parser = options.worker_parser()
    ours, program = options.split(command[2:], parser)
    assert program == ["train.py"]
    return parser.parse_args(ours)


def jobs_of(jobset: dict[str, Any]) -> list[dict[str, Any]]:
    """The Jobs that its controller makes, without their metadata."""
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, **each["template"]}
        for each in jobset["spec"]["replicatedJobs"]
    ]


def environ_of(job: dict[str, Any], index: int) -> dict[str, str]:
    [container] = job["spec"]["template"]["spec"]["containers"]
    own = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return {**own, "JOB_COMPLETION_INDEX": str(index)}


def check_key(pod: dict[str, Any], page: str) -> None:
    """The only container of ``pod`` gets the key of the page's secret, in a file of its owner."""
    [container], [volume] = pod["containers"], pod["volumes"]
    [mount] = container["volumeMounts"]
    [file] = [each["value"] for each in container["env"] if each["name"] == "LOCKSTEP_KEY_FILE"]
    assert file == f"{mount['mountPath']}/key"
    assert mount["name"] == volume["name"]
    assert volume["secret"]["defaultMode"] == 0o400
    assert f"secret generic {volume['secret']['secretName']} --from-file=key=" in page


def check_job(job: dict[str, Any]) -> None:
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(environ_of(job, 0)["JOB_COMPLETIONS"])
    check_key(pod, PAGE)
    options_of(pod["containers"][0]["command"])


def test_the_indexed_job() -> None:
    service, job = documents("train.yaml")
    validate(service)
    validate(job)
    check_job(job)
    assert service["spec"]["clusterIP"] == "None"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    for index in range(4):
        environ = environ_of(job, index) | {"HOSTNAME": f"train-{index}"}
        place = detect(environ, lambda path, name=f"train-{index}": ETC_HOSTS.format(name))
        assert place is not None
        assert (place.rank, place.size) == (index, 4)
        assert place.coordinator == "train-0.train.default.svc.cluster.local:61440"
        assert place.coordinator.replace(":", "`, port ") in PAGE


def test_the_variant_that_does_not_run_as_root() -> None:
    _, job = documents("train.yaml")
    [changes] = documents("not-as-root.yaml")
    job["spec"]["template"]["spec"] |= changes
    validate(job)
    [container] = changes["containers"]
    copied = re.search(r"cat \S+ > (\S+);", container["command"][-1])
    assert copied
    assert environ_of(job, 0)["LOCKSTEP_KEY_FILE"] == copied[1]
    options_of(container["command"][-1].partition("exec ")[2].split())


def test_the_variant_for_nodes_that_come_and_go() -> None:
    _, job = documents("train.yaml")
    [changes] = documents("come-and-go.yaml")
    [new] = changes.pop("template")["spec"]["containers"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert new.keys() == {"name", "command"}
    assert new["name"] == container["name"]
    container |= new
    job["spec"] |= changes
    validate(job, WITH_SUCCESS_POLICY)
    check_job(job)
    told = options_of(container["command"])
    assert told.nnodes.least < told.nnodes.most == job["spec"]["completions"]
    node_range.check(told.nnodes, told.nnodes.most, 1, told.max_restarts, told.grow)
    [rule] = job["spec"]["successPolicy"]["rules"]
    assert rule == {"succeededIndexes": "0"}
    with pytest.raises(kubernetes_validate.ValidationError, match="successPolicy"):
        validate(job, ("1.29",))


def test_the_jobset() -> None:
    [jobset] = documents("jobset.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    check_model("JobsetV1alpha2JobSet", jobset)
    [replicated] = jobset["spec"]["replicatedJobs"]
    [job] = jobs_of(jobset)
    validate(job)
    check_job(job)
    [container] = job["spec"]["template"]["spec"]["containers"]
    annotations = {
        each["name"]: re.findall(
            r"metadata\.annotations\['(.*)'\]", each["valueFrom"]["fieldRef"]["fieldPath"]
        )
        for each in container["env"]
        if "valueFrom" in each
    }
    assert annotations == {
        "JOBSET_REPLICAS": ["jobset.sigs.k8s.io/global-replicas"],
        "JOBSET_JOB_INDEX": ["jobset.sigs.k8s.io/job-global-index"],
    }
    ranks = []
    for number in range(replicated["replicas"]):
        for index in range(job["spec"]["completions"]):
            host = f"train-workers-{number}-{index}"
            told = {"JOBSET_REPLICAS": str(replicated["replicas"]), "JOBSET_JOB_INDEX": str(number)}
            environ = environ_of(job, index) | told | {"HOSTNAME": host}
            place = detect(environ, lambda path, name=host: ETC_HOSTS.format(name))
            assert place is not None
            assert place.coordinator == "train-workers-0-0.train.default.svc.cluster.local:61440"
            assert place.size == 8
            ranks.append(place.rank)
    assert ranks == list(range(8))


def test_the_schemas_refuse_what_is_wrong() -> None:
    """So that the tests above mean something."""
    _, job = documents("train.yaml")
    job["spec"]["completion"] = 4
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(job)
    [jobset] = documents("jobset.yaml")
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(AssertionError):
        check_model("JobsetV1alpha2JobSet", jobset)
