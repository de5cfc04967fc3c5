"""A notebook's kernel under test: cells go in, texts come out."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from nbclient import NotebookClient

from lockstep.system import process_tree
from processes import clean_environ
from support import wait_until, with_variables

if importlib.util.find_spec("ipyparallel") is None:  # an import takes 0.3 s of each worker
    pytest.skip("needs ipyparallel (the extra `notebook`)", allow_module_level=True)

IPYKERNEL_MAJOR = int(importlib.metadata.version("ipykernel").partition(".")[0])

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CELL_SECONDS = 120
MARK = "TEST_NOTEBOOK_MARK"
"""A variable with a value of its own in every kernel: it finds the processes of its job."""


class Notebook:
    """A kernel that runs. Made by `notebook`."""

    def __init__(self, client: NotebookClient, mark: str) -> None:
        self._client = client
        self._mark = mark
        self.cells: list[Any] = []

    def run(self, source: str, interrupt_after: str | None = None, below: bool = False) -> str:
        """What a cell shows: output, values, figures by their type, errors.

        ``interrupt_after`` is text of stdout after which the kernel is interrupted; ``below``: as
        VS Code does it, and all processes below the kernel before.
        """
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        stop = threading.Event()
        if interrupt_after is not None:
            words = (cell, interrupt_after, stop, below)
            threading.Thread(target=self._interrupt, args=words, daemon=True).start()
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        stop.set()
        return text_of(cell)

    def outputs(self) -> list[Any]:
        """What the last cell sent, as the front end gets it."""
        return list(self._client.nb.cells[-1].outputs)

    def run_beside(self, source: str, words: str, beside: str) -> tuple[str, str]:
        """What ``beside`` shows in a subshell once ``source`` has shown ``words``; then ``source``.

        ``source`` is interrupted after that.
        """
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        shown: list[str] = []

        def look() -> None:
            deadline = time.monotonic() + _CELL_SECONDS
            while words not in text_of(cell) and time.monotonic() < deadline:
                time.sleep(0.05)
            try:
                shown.append(in_subshell(self._client.km.connection_file, beside))  # type: ignore
            finally:
                os.kill(self.pid, signal.SIGINT)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        thread.join(_CELL_SECONDS)
        return "\n".join(shown), text_of(cell)

    def _interrupt(self, cell: Any, words: str, stop: threading.Event, below: bool) -> None:
        while not stop.wait(0.05):
            if words in text_of(cell):
                for process in psutil.Process(self.pid).children(recursive=True) if below else ():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGINT)
                os.kill(self.pid, signal.SIGINT)
                return

    @property
    def pid(self) -> int:
        """The kernel's."""
        return self._client.km.provisioner.pid  # type: ignore[union-attr]

    def processes(self) -> set[int]:
        """All that the kernel and its job consist of."""
        return with_variables(f"{MARK}={self._mark}")

    def wait_until_all_are_gone(self) -> None:
        wait_until(lambda: not self.processes(), lambda: f"still there: {self.processes()}", 30)


def in_subshell(connection_file: str, source: str) -> str:
    """What ``source`` prints in a subshell of a kernel, beside what its main shell runs."""
    client = BlockingKernelClient(connection_file=connection_file)
    client.load_connection_file()
    client.start_channels()
    try:
        client.control_channel.send(client.session.msg("create_subshell_request"))
        reply = client.get_control_msg(timeout=_CELL_SECONDS)
        content = {"code": source, "silent": False, "store_history": False, "allow_stdin": False}
        message = client.session.msg("execute_request", content)
        message["header"]["subshell_id"] = reply["content"]["subshell_id"]
        client.shell_channel.send(message)
        printed = ""
        while True:
            found = client.get_iopub_msg(timeout=_CELL_SECONDS)
            if found["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                printed += found["content"].get("text", "")
                if found["content"].get("execution_state") == "idle":
                    return printed
    finally:
        client.stop_channels()


def text_of(cell: Any) -> str:
    """A cell's outputs as a front end shows them.

    The kernel sends what a stream holds every 0.2 s, also in the middle of a line, so messages of
    the same stream in a row are one text.
    """
    parts: list[str] = []
    stream = None
    for output in list(cell.get("outputs", [])):
        previous, stream = stream, output.get("name")
        if output.output_type == "stream":
            if stream == previous:
                parts[-1] += output.text
            else:
                parts.append(output.text)
        elif output.output_type == "error":
            parts.append("\n".join(output.traceback))
        elif "image/png" in output.data:
            parts.append("image/png")
        else:
            parts.append(output.data["text/plain"])
    return "\n".join(_ANSI.sub("", part).rstrip("\n") for part in parts)


@contextlib.contextmanager
def notebook(folder: Path) -> Iterator[Notebook]:
    """A kernel in ``folder``; at the end none of its processes is left."""
    mark = uuid.uuid4().hex
    client = NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=_CELL_SECONDS,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    made = Notebook(client, mark)
    try:
        with client.setup_kernel(env={**clean_environ(), MARK: mark}):
            yield made
        made.wait_until_all_are_gone()
    finally:
        process_tree.kill(made.processes())
