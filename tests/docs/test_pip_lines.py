"""Each ``pip install`` line of every page, typed: pip resolves it, and installs nothing.

``PIP_DRY_RUN`` holds pip back from the installation. Lockstep itself is not published, so pip gets
the folder of its wheel; a line for a checkout is typed in this one.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from pathlib import Path

import pytest

from page_commands import ROOT, in_sentences, listed_lines, output_of
from page_environments import WHEELS, commands_of

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
INSTALL = re.compile(r"(?:python3 -m venv \S+ && \S*/)?pip install ['\w.].*")
SECONDS = 120


def pip_lines(page: str) -> list[str]:
    """Of its listings without comments, and of its sentences."""
    lines = [line.partition("  #")[0].strip() for line in listed_lines(page)]
    return [line for line in [*lines, *in_sentences(page)] if INSTALL.fullmatch(line)]


LINES = sorted(
    {line for page in PAGES if page.name != "CHANGELOG.md" for line in pip_lines(page.read_text())}
)


def normal(name: str) -> str:
    return re.sub(r"[._-]+", "-", name).lower()


def wanted(line: str) -> set[str]:
    """The packages that a line names."""
    words = line.partition("install ")[2].replace("'", "").split()
    names = [re.split(r"[=\[]|-\*", word)[0] for word in words]
    return {normal("lockstep-jax" if name == "." else name) for name in names}


def test_lines_are_found() -> None:
    assert len(LINES) > 8
    assert wanted("pip install 'lockstep-jax[data]' netket==3.1") == {"lockstep-jax", "netket"}
    assert wanted("pip install '.[test]'") == wanted("x/pip install lockstep_jax-*.whl")


@pytest.mark.full
@pytest.mark.timeout(900)  # the first run installs jax
@pytest.mark.parametrize("line", LINES)
def test_pip_resolves_a_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin = commands_of(
        *(f"{name}=={importlib.metadata.version(name)}" for name in ("jax", "jaxlib"))
    )
    environ = {
        "HOME": str(tmp_path),
        "PIP_DRY_RUN": "1",
        "PIP_FIND_LINKS": str(WHEELS),
        "PIP_NO_BUILD_ISOLATION": "0",  # pip takes it for the value of its opposite
    }
    if "flax==0.12.12" in line:  # libraries.md says that it is for Python 3.12
        environ |= {"PIP_PYTHON_VERSION": "3.12", "PIP_ONLY_BINARY": ":all:"}
        environ |= {"PIP_TARGET": str(tmp_path / "there")}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for wheel in WHEELS.glob("*.whl"):
        shutil.copy(wheel, tmp_path)
    (tmp_path / "checkout").symlink_to(ROOT)
    place = "cd checkout && " if re.search(r"install '?\.", line) else ""
    output = output_of(f"{place}{line} && echo all is there", tmp_path, SECONDS, bin)
    assert output.endswith("all is there\n"), output
    would = re.findall(r"^Would install (.*)$", output, re.M)
    there = re.findall(r"already satisfied: ([\w.-]+)", output)
    found = {normal(re.sub(r"-\d[^-]*$", "", word)) for word in " ".join(would).split()}
    assert wanted(line) <= found | set(map(normal, there)), output
