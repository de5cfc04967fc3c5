"""The commands of docs/how-to/kubernetes.md, run by real kubectl; the server is the test's own."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import kubernetes_api
from lanes import needs
from page_commands import ROOT, files
from processes import captured

PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
COMMANDS = re.findall(r"^    (openssl .*kubectl .*)$|`(kubectl \w+ -[^`]+)`", PAGE, re.M)
LINES = [whole or inline for whole, inline in COMMANDS]
LOGS = {"train-0-x7k2p": "step 0: 8.0\n", "train-1-9qz4d": "step 0: 8.0\n"}
SECONDS = 60

pytestmark = [
    pytest.mark.full,
    needs(bool(shutil.which("kubectl") and shutil.which("openssl")), "no kubectl, or no openssl"),
]


def typed(line: str, folder: Path, config: Path) -> str:
    for title, text in files(PAGE).items():
        (folder / title).write_text(text)
    environ = {**os.environ, "KUBECONFIG": str(config), "HOME": str(folder)}
    done = captured(
        ["bash", "-o", "pipefail", "-c", line], env=environ, cwd=folder, timeout=SECONDS
    )
    assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_command_with_an_object_is_here() -> None:
    assert [re.findall(r"kubectl (\w+)", line)[0] for line in LINES] == [
        "create",
        "apply",
        "logs",
        "delete",
    ]


def test_the_key_the_objects_the_logs_and_the_end(tmp_path: Path) -> None:
    create, apply, logs, delete = LINES
    with kubernetes_api.served(tmp_path, LOGS) as (api, config):
        assert typed(create, tmp_path, config) == "secret/train-key created\n"
        [secret] = api.objects.values()
        assert re.search(r"\bkey\x12.[0-9a-f]{64}\n", secret["body"]), secret

        said = typed(apply, tmp_path, config)
        assert said == "service/train created\njob.batch/train created\n"
        assert api.kinds() == ["Secret", "Service", "Job"]

        lines = typed(logs, tmp_path, config).splitlines()
        assert api.selectors == ["batch.kubernetes.io/job-name=train"]
        assert sorted(lines) == [f"[pod/{pod}/main] step 0: 8.0" for pod in sorted(LOGS)]

        said = typed(delete, tmp_path, config)
        assert said == 'service "train" deleted\njob.batch "train" deleted\n'
        assert api.kinds() == ["Secret"]
