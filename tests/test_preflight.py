"""What the build says about an interpreter that it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import captured, write_command

PREFLIGHT = Path(__file__).parents[1] / "scripts" / "preflight.sh"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no libpython >&2; exit 127", "does not run: no libpython. Another one: make PYTHON"),
        ('case "$2" in *print*) echo Python 3.9.2;; *) exit 1;; esac', "Python 3.9.2 is too old."),
    ],
)
def test_an_interpreter_that_cannot_be_used(script: str, words: str, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "PYTHON": write_command(tmp_path / "python3", script)}
    done = captured(["sh", str(PREFLIGHT)], env=environ, timeout=30)
    assert done.returncode == 1
    assert words in done.stderr
