"""The place of a pod of an Indexed Job or a JobSet."""

from __future__ import annotations

import pytest

from cluster_environs import coordinator, parse, place
from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import detect, explain_none

# A pod of the Indexed Job "train" with the headless service "train", and its /etc/hosts.
POD = parse("""
    HOSTNAME=train-2
    JOB_COMPLETION_INDEX=2
    JOB_COMPLETIONS=4
    KUBERNETES_PORT=tcp://10.96.0.1:443
    KUBERNETES_SERVICE_HOST=10.96.0.1
    KUBERNETES_SERVICE_PORT=443
""")
ETC_HOSTS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
10.244.1.7\t{host}.{service}.default.svc.cluster.local\t{host}
"""
# A pod of the JobSet "net", whose job "workers" has 2 replicas of 3 pods.
JOBSET_POD = POD | parse("""
    HOSTNAME=net-workers-1-2
    JOB_COMPLETION_INDEX=2
    JOB_COMPLETIONS=3
    JOBSET_JOB_INDEX=1
    JOBSET_REPLICAS=2
""")


def files(host: str, service: str = "train"):
    text = ETC_HOSTS.format(host=host, service=service)
    return lambda path: text if path == "/etc/hosts" else None


def test_a_pod_of_an_indexed_job() -> None:
    found = detect(POD, files("train-2"))
    name = "train-0.train.default.svc.cluster.local:61440"
    assert found == place(2, 4, None, None, name, "Kubernetes")
    of_user = coordinator(POD | {"JAX_COORDINATOR_PORT": "1234"}, files("train-2"))
    assert of_user == "train-0.train.default.svc.cluster.local:1234"


def test_a_pod_of_a_jobset() -> None:
    found = detect(JOBSET_POD, files("net-workers-1-2", "net"))
    name = "net-workers-0-0.net.default.svc.cluster.local:61440"
    assert found == place(5, 6, None, None, name, "Kubernetes")
    # Where spec.coordinator names another pod.
    told = JOBSET_POD | {"JOBSET_COORDINATOR": "net-leader-0-0.net"}
    assert detect(told) == place(5, 6, None, None, "net-leader-0-0.net:61440", "Kubernetes")


def test_a_jobset_with_one_job_needs_no_more_than_an_indexed_job() -> None:
    only = {name: value for name, value in JOBSET_POD.items() if not name.startswith("JOBSET")}
    first = coordinator(only | {"HOSTNAME": "net-workers-0-2"}, files("net-workers-0-2", "net"))
    assert first == "net-workers-0-0.net.default.svc.cluster.local:61440"


@pytest.mark.parametrize("hosts", ["", "127.0.0.1 localhost\n", "10.1.1.1 train-20.x train-2\n"])
def test_without_a_headless_service_there_is_no_name_of_process_0(hosts: str) -> None:
    found = detect(POD, lambda path: hosts)
    assert found == place(2, 4, None, None, None, "Kubernetes")
    assert detect(POD | {"HOSTNAME": "node7"}, files("node7")) == found


def test_the_number_of_pods_has_to_be_in_the_manifest() -> None:
    without = {name: value for name, value in POD.items() if name != "JOB_COMPLETIONS"}
    assert detect(without) is None
    assert "set JOB_COMPLETIONS in the manifest" in explain_none(without)


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        (POD | {"JOB_COMPLETIONS": "2"}, "Kubernetes say rank 2 of 2 processes"),
        (JOBSET_POD | {"JOBSET_REPLICAS": "1"}, "a JobSet say rank 1 of 1 processes"),
        (JOBSET_POD | {"JOB_COMPLETION_INDEX": "3"}, "Kubernetes say rank 3 of 3 processes"),
        (POD | {"JOBSET_REPLICAS": "2"}, "JOBSET_JOB_INDEX is not set"),
        (POD | {"JOB_COMPLETIONS": "all"}, "JOB_COMPLETIONS='all' .* is not a whole number"),
    ],
)
def test_variables_that_contradict_each_other(environ: dict[str, str], error: str) -> None:
    with pytest.raises(LaunchError, match=error):
        detect(environ)
