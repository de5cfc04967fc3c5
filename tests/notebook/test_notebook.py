"""Real notebooks: a kernel, ipyparallel's controller, and the processes of a job."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from notebooks import IPYKERNEL_MAJOR, Notebook, notebook
from support import assert_unsaid

START = "%load_ext lockstep\n%lockstep start -n 2 -d 2"
SETUP = """%%lockstep
import os, sys, time
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
rank = jax.process_index()
def meet(): return multihost_utils.process_allgather(jnp.arange(3)).sum()
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Notebook]:
    with notebook(tmp_path) as made:
        yield made


def test_a_notebook_from_start_to_stop(kernel: Notebook) -> None:
    run = kernel.run
    assert "%lockstep start -n 2 -d 4 starts" in run("%load_ext lockstep\n%lockstep status")
    started = run("%lockstep start -n 2 -d 2")
    assert "2 processes, 4 devices (cpu), jax" in started
    assert run(SETUP) == ""
    cell = "%%lockstep\nprint('same')\nprint('I am', rank)\nint(meet())"
    assert run(cell) == "[0-1] same\n[0] I am 0\n[1] I am 1\n6"
    assert run("%%lockstep\nrank") == "[0] 0\n[1] 1"
    assert run("%%lockstep\nimport asyncio; await asyncio.sleep(0.01); 'awaited'") == "'awaited'"
    rich = (
        "%%lockstep\nclass Table:\n    def _repr_html_(self): return '<b>1</b>'\n"
        "    def __repr__(self): return 'one'\nTable()"
    )
    assert run(rich) == "one"
    # A front end chooses; VS Code, Colab and JupyterLab take the HTML.
    assert kernel.outputs()[0].data == {"text/plain": "one", "text/html": "<b>1</b>"}
    plot = (
        "%%lockstep\nfrom IPython.display import display\nprint('before')\n"
        "display({'image/png': 'iVBORw0KGgo=', 'text/plain': f'of {rank}'}, raw=True)\n"
        "print('after')"
    )
    assert run(plot) == "[0-1] before\nimage/png\n[0-1] after"
    run("%%lockstep\nimport lockstep; lockstep.show_sharding(jnp.ones(3))")
    assert [output.output_type for output in kernel.outputs()] == ["execute_result"]
    run("%%lockstep --on 0\nlockstep.show_sharding(jnp.ones(3))")
    data = kernel.outputs()[-1].data
    assert "float32[3] on each" in data["text/plain"], data  # a front end may show no HTML
    assert "\x1b" not in data["text/plain"]
    assert "float32[3] on each" in data["text/html"]
    assert "only [0] runs this cell" in run("%%lockstep --on 0\nrank")
    run("x = {'a': 1}\n%lockstep push x")
    run("%%lockstep\nx['b'] = rank; y = jnp.ones(3)")
    assert run("%lockstep pull x --on 0-1\n%lockstep pull y\nprint(x, y)") == (
        "[{'a': 1, 'b': 0}, {'a': 1, 'b': 1}] [1. 1. 1.]"
    )
    assert "process 0 has no variable 'z'" in run("%lockstep pull z")
    status = run("%lockstep status")
    assert "[0] pid" in status
    assert "in no collective" in status

    equal = run("%%lockstep\nmissing")
    assert equal.startswith("[0-1] failed:")
    assert "----> 2 missing" in equal
    assert run("%%lockstep\nint(meet())") == "6"  # the job is as good as before

    culprit = run("%%lockstep\nif rank == 1:\n    raise ValueError('boom')\nmeet()")
    assert culprit.startswith("[1] failed:")
    assert "----> 3     raise ValueError('boom')" in culprit
    one_line = r"^\[0\] \w+: lockstep: process 1 left the cell by ValueError: boom, and process 0 "
    assert re.search(one_line, culprit, re.MULTILINE), culprit  # jax has two classes for it
    assert culprit.endswith(
        "%lockstep restart starts the processes again, without their variables."
    )
    assert "collectives fail: process 1 left the cell" in run("%%lockstep\n1")
    assert run("%lockstep stop") == "the processes have ended"


@pytest.mark.full
def test_an_interrupt_leaves_the_processes_usable(kernel: Notebook) -> None:
    kernel.run(START)
    kernel.run(SETUP)
    text = kernel.run("%%lockstep\nprint('up')\ntime.sleep(600)", interrupt_after="up")
    assert text.endswith("[0-1] KeyboardInterrupt")
    assert kernel.run("%%lockstep\nint(meet())") == "6"
    awaits = "%%lockstep\nimport asyncio\nprint('up')\nawait asyncio.sleep(600)"
    assert kernel.run(awaits, interrupt_after="up").endswith("CancelledError: ")
    one = "%%lockstep\nprint('up')\nif rank == 1:\n    time.sleep(600)\nmeet()"
    assert "[0-1] KeyboardInterrupt" in (text := kernel.run(one, interrupt_after="up"))
    assert "The processes can run no more collectives. %lockstep restart" in text
    assert "2 processes" in kernel.run("%lockstep restart")
    assert kernel.run(f"{SETUP}\nint(meet())") == "6"


@pytest.mark.full
def test_vs_codes_interrupt_leaves_the_processes_usable(kernel: Notebook) -> None:
    kernel.run(START)
    kernel.run(SETUP)
    cell = "%%lockstep\nprint('up')\ntime.sleep(600)"
    text = kernel.run(cell, interrupt_after="up", below=True)
    assert text.endswith("[0-1] KeyboardInterrupt")
    assert kernel.run("%%lockstep\nint(meet())") == "6"
    # Nor does an interrupt end anything while no process runs a cell.
    kernel.run("import time; print('up'); time.sleep(600)", interrupt_after="up", below=True)
    assert kernel.run("%%lockstep\nint(meet())") == "6"
    assert "2 processes" in kernel.run("%lockstep restart")


@pytest.mark.full
@pytest.mark.skipif(IPYKERNEL_MAJOR < 7, reason="ipykernel before 7 has no subshells")
def test_status_in_a_subshell_runs_beside_a_cell(kernel: Notebook) -> None:
    kernel.run(f"import jax\njax.devices()\n{START}")
    kernel.run(SETUP)
    cell = "%%lockstep\nmeet()\nprint('up')\ntime.sleep(600)"
    status, cell = kernel.run_beside(cell, "up", "%lockstep status")
    for process in range(2):
        line = rf"^\[{process}\] pid \d+: runs a cell: In\[\d+\]:[34]\b"
        assert re.search(line, status, re.MULTILINE), status
    assert "in no collective" in status
    assert cell.endswith("[0-1] KeyboardInterrupt")


@pytest.mark.full
def test_a_process_that_dies_or_waits_for_others_in_vain_is_named(kernel: Notebook) -> None:
    kernel.run(START)
    kernel.run(SETUP)
    text = kernel.run("%%lockstep\nif rank == 1:\n    os.kill(os.getpid(), 9)\nmeet()")
    assert "process 1 of 2 failed first: killed by SIGKILL (signal 9)" in text
    assert_unsaid("KernelNanny", text)
    assert text.endswith("%lockstep restart starts the processes again, without their variables.")
    assert "killed by SIGKILL" in kernel.run("%%lockstep\n1")
    assert "[1] pid" in (status := kernel.run("%lockstep status"))
    assert "ended" in status
    assert "2 processes" in kernel.run("%lockstep restart")
    assert kernel.run(f"{SETUP}\nint(meet())") == "6"
    text = kernel.run("%%lockstep --on 0\nmeet()")
    assert "process 1 does not run this cell (--on), and process 0 waits for it" in text


@pytest.mark.full
@pytest.mark.parametrize("what", ["-n 2 -d 2 --collectives gloo", "-n 1 -d 2"])
def test_gloo_and_one_process(kernel: Notebook, what: str) -> None:
    kernel.run(f"%load_ext lockstep\n%lockstep start {what}")
    kernel.run(SETUP)
    assert kernel.run("%%lockstep\nprint(int(meet()))").endswith(" 6") or what[3] == "1"
    assert "failed:" in kernel.run("%%lockstep\nmissing")
    assert "[0] pid" in kernel.run("%lockstep status")


@pytest.mark.full
def test_over_gloo_a_wait_in_vain_needs_a_restart(kernel: Notebook) -> None:
    kernel.run("%load_ext lockstep\n%lockstep start -n 2 --collectives gloo")
    # The first collective connects the processes, which has a limit of its own in gloo.
    kernel.run(SETUP + "meet()")
    cell = "%%lockstep\nif rank == 1:\n    raise ValueError('boom')\nmeet()"
    text = kernel.run(cell, interrupt_after="[1] ValueError: boom; [0] still runs")
    assert "[1] failed:" in text
    assert re.search(r"\[0\] still runs at In\[\d+\]:\d+ in meet, which calls \w+ \(", text), text
    assert "[0] did not react to the interrupt" in text
    assert "[0] still runs the cell before" in kernel.run("%%lockstep\n1")
    assert "2 processes" in kernel.run("%lockstep restart")


@pytest.mark.full
def test_a_start_that_fails_says_why(kernel: Notebook) -> None:
    text = kernel.run("%load_ext lockstep\n%lockstep start -n 2 --platform nowhere")
    assert "the processes could not be started" in text
    assert "Unable to initialize backend 'nowhere'" in text
    assert "No processes run" in kernel.run("%lockstep status")


@pytest.mark.full
def test_a_kernel_that_is_killed_leaves_nothing_behind(kernel: Notebook) -> None:
    kernel.run(START)
    assert len(kernel.processes()) > 4
    os.kill(kernel.pid, signal.SIGKILL)
    kernel.wait_until_all_are_gone()
