"""A process dies while the job begins: the others do not wait for it, wherever they are by then."""

from __future__ import annotations

import re
import signal

from faults.harness import PROGRAMS
from lanes import sample
from support import assert_unsaid, run_lockstep, start_lockstep, wait_until


@sample(
    ("moment", "culprit"),
    [
        ("before its first word", 1),
        ("before it hears the first word", 1),
        ("before its engine starts", 0),
        ("before its last word", 1),
        ("before it watches", 0),
        ("as it watches", 1),
    ],
    2,
)
def test_a_process_that_dies_at_the_start_is_not_waited_for(moment: str, culprit: int) -> None:
    # The launcher leaves the others alone for half of the grace.
    result = run_lockstep(
        ["--grace", "60"],
        PROGRAMS / "dies_at_the_start.py",
        n=3,
        program_args=[str(culprit), moment],
        expect_status=137,
    )
    assert result.by_process[culprit][-1].startswith("planted "), result
    for survivor in {0, 1, 2} - {culprit}:
        (said,) = result.by_process[survivor]
        word, _, text = said.split(" ", 2)
        assert word == "raised", result
        assert f"process {culprit} " in text, result
        assert "was killed by SIGKILL" in text, result
    assert_unsaid("killed because they did not end", result.stderr)


WAITS = """
import os, pathlib, time
import lockstep
from lockstep.engine import bindings

process, real = os.environ["LOCKSTEP_PROCESS_ID"], bindings.start

def start(options):
    pathlib.Path(os.environ["TMPDIR"], f"starts_{process}").touch()
    if process == "1":
        time.sleep(300)
    real(options)

bindings.start = start
lockstep.initialize()
"""
"""Process 0 waits for the engine of process 1, inside of jaxlib."""


def test_ctrl_c_while_the_engine_starts_is_no_error_of_jaxlib() -> None:
    with start_lockstep(["-n", "2"], WAITS) as run:
        wait_until(lambda: len(list(run.folder.glob("starts_*"))) == 2, "both start", 60)
        run.process.send_signal(signal.SIGINT)
        result = run.finish(60)
    assert result.status == 130
    assert re.search(r"\[0\] stopped at .*program.py:12", result.stderr), result.stderr
    for of_jax in ("Different local topology", "Unable to initialize backend"):
        assert of_jax not in result.stderr, result.stderr
