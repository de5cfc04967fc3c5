"""`lockstep.should_stop`: all processes stop at the same step, and only when they are asked to."""

from __future__ import annotations

import signal

import pytest

import lockstep
from lanes import sample
from support import run_lockstep, start_lockstep, wait_until

PROGRAM = """
import os, pathlib, signal, time
import jax, lockstep
jax.distributed.initialize()
here = pathlib.Path(os.environ["TMPDIR"])
for step in range(2000):
    if step == 5:
        {at_5}
    if lockstep.should_stop():
        print("stopped", step, lockstep.should_stop(), flush=True)
        break
    time.sleep(0.01)
else:
    print("not told", flush=True)
"""
ITSELF = "if jax.process_index() == 1: os.kill(os.getpid(), signal.SIGTERM)"


@sample("collectives", ["lockstep", "gloo"], 0)
def test_all_stop_at_the_step_that_none_has_begun(collectives: str) -> None:
    options = ["--collectives", collectives]
    result = run_lockstep(options, PROGRAM.format(at_5=ITSELF), n=3, forked=True)
    [told] = {tuple(lines) for lines in result.by_process.values()}
    [(word, step, stays)] = [line.split() for line in told]
    assert (word, stays) == ("stopped", "True")
    assert int(step) > 5


def test_sigterm_to_the_launcher_is_a_request() -> None:
    program = PROGRAM.format(at_5="(here / f'ready_{jax.process_index()}').touch()")
    with start_lockstep(["-n", "2", "--grace", "30"], program, forked=True) as run:
        wait_until(lambda: len(list(run.folder.glob("ready_*"))) == 2, "both are ready", 30)
        run.process.send_signal(signal.SIGTERM)
        result = run.finish(60)
    assert [lines[-1].split()[0] for lines in result.by_process.values()] == ["stopped"] * 2


def test_a_process_without_a_job_is_never_told() -> None:
    assert not lockstep.should_stop()


@pytest.mark.full
def test_a_program_that_has_disabled_the_service_is_told_so() -> None:
    program = PROGRAM.format(at_5="pass")
    environ = {"JAX_ENABLE_PREEMPTION_SERVICE": "false"}
    result = run_lockstep([], program, env=environ, expect_status=1, forked=True)
    assert "ConfigError: JAX's preemption service" in result.stderr
