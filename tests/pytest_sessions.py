"""Sessions of pytest in processes of their own, over a project that a test writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path


def session(
    folder: Path, *args: str, timeout: float = 240, xdist: bool = False, stdin: int | None = None
) -> tuple[int, str]:
    """Runs pytest in a process of its own: (exit code, what it printed)."""
    own = ["-p", "no:cacheprovider", *([] if xdist else ["-p", "no:xdist"])]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COLUMNS"))}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environ,
        stdin=stdin,
    )
    return ended.returncode, ended.stdout + ended.stderr


def project(folder: Path, tests: str, conftest: str = "") -> Path:
    (folder / "conftest.py").write_text(textwrap.dedent(conftest))
    (folder / "test_it.py").write_text(textwrap.dedent(tests))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def verdicts(text: str, file: str = "test_it") -> dict[str, str]:
    return dict(re.findall(rf"^{file}\.py::(\S+) ([A-Z]+)", text, re.MULTILINE))
