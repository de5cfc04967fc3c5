"""The pytest plug-in: sessions with a test or two, and what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanes import needs
from of_this_jax import where_numbered
from pytest_sessions import project, session, verdicts
from support import assert_unsaid

LONG = """
    import jax, jax.numpy as jnp, numpy as np, pytest
    from jax.sharding import NamedSharding, PartitionSpec as P

    @jax.jit
    def a_step_of_the_training_with_a_name_that_is_long(images, labels, weights_of_the_rows):
        return jnp.sum(images * labels * weights_of_the_rows)

    @pytest.mark.lockstep(n=2, devices=1)
    def test_long(lockstep):
        rows = NamedSharding(jax.make_mesh((2,), ("rows",)), P(None, "rows"))
        for steps in [5] * 4 + [5 - lockstep.rank]:
            ones = np.ones((steps, 36), np.float32)
            arrays = [jax.make_array_from_process_local_data(rows, ones) for _ in range(3)]
            float(a_step_of_the_training_with_a_name_that_is_long(*arrays))
"""


@pytest.mark.full
def test_rows_and_causes_that_an_error_has_no_room_for_are_a_section(tmp_path: Path) -> None:
    status, text = session(project(tmp_path, LONG))
    assert status == 1, text
    assert "  and 1 process more" in text
    report = text.split("What the processes did")[1]
    for rank in range(2):
        assert f"> process {rank} (pid" in report
    assert where_numbered("different shapes: images of a_step_of_the_training") in report


@pytest.mark.full
def test_bad_marks_and_options_are_errors_in_words(tmp_path: Path) -> None:
    bad = "import pytest\n@pytest.mark.lockstep(n=0)\ndef test_bad(): pass"
    folder = project(tmp_path, bad)
    status, text = session(folder, "--collect-only")
    assert_unsaid("Traceback", text)
    assert "pluggy" not in text.split("ERRORS")[1]
    assert "pytest.mark.lockstep(n=...): 0 is not a whole number, 1 or more" in text
    assert status != 0
    _, text = session(folder, "--collect-only", "--lockstep-n=two")
    assert "--lockstep-n: 'two' is not a whole number, 1 or more" in text
    bad = "import pytest\n@pytest.mark.lockstep({})\ndef test_bad(): pass"
    for words, said in (
        ("n=[]", "pytest.mark.lockstep(n=...): the list is empty"),
        ("timeout='soon'", "pytest.mark.lockstep(timeout=...): 'soon' is not a number of seconds"),
    ):
        _, text = session(project(tmp_path, bad.format(words)), "--collect-only")
        assert said in text


def has_namespaces() -> bool:
    try:
        command = ["unshare", "-Urm", "true"]
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


@needs(has_namespaces(), "needs user and mount namespaces")
def test_a_terminal_that_has_no_name_here_is_none(tmp_path: Path) -> None:
    """As in a container that was given a terminal of its host."""
    outer, inner = os.openpty()
    try:
        program = "import pytest_lockstep; print(pytest_lockstep.TTY)"
        hide = f"mount -t tmpfs none /dev/pts && exec {sys.executable} -c '{program}'"
        ended = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", hide],
            stdin=inner,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(outer)
        os.close(inner)
    assert (ended.returncode, ended.stdout) == (0, "None\n"), ended


PARTS = """
    import pytest

    @pytest.mark.lockstep(n=2, devices=1)
    def test_one(lockstep):
        if lockstep.rank == 1:
            covered = "only on rank 1"
        assert lockstep.size == {size}

    @pytest.mark.lockstep(n=2, devices=1)
    def test_two():
        pass
"""


@pytest.mark.full
def test_options_choose_the_layout_and_x_ends_the_session(tmp_path: Path) -> None:
    folder = project(tmp_path, PARTS.format(size=2))
    status, text = session(folder, "-v", "--lockstep-n=1", "-x")
    assert verdicts(text) == {"test_one": "FAILED"}, text
    assert "assert 1 == 2" in text
    assert status == 1


@pytest.mark.full
def test_a_conftest_that_fails_on_the_ranks_is_told(tmp_path: Path) -> None:
    tests = """
        import pytest

        @pytest.mark.lockstep(n=2)
        def test_it():
            pass
    """
    conftest = """
        import os

        if "LOCKSTEP_PROCESS_ID" in os.environ:
            raise RuntimeError("not on a rank")
    """
    status, printed = session(project(tmp_path, tests, conftest))
    assert status == 1, printed
    assert "ranks 0-1 of 2:" in printed
    assert 'conftest.py", line 5, in <module>' in printed
    assert "RuntimeError: not on a rank" in printed
