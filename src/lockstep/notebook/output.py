"""Shows what several processes print and display in one cell of a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from IPython.core.getipython import get_ipython

from lockstep._words import grouped
from lockstep.notebook.fold import Folder, Line, label

_LIVE_SECONDS = 0.5
"""An unfinished line, of a progress bar say, is shown this often."""


class Value:
    """The values of a cell's last expression, shown as IPython shows one if they look alike."""

    def __init__(self, contents: dict[int, dict[str, Any]]) -> None:
        self._contents = dict(sorted(contents.items()))

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        texts = {p: str(c["data"].get("text/plain", "")) for p, c in self._contents.items()}
        if len(set(texts.values())) == 1:
            first = next(iter(self._contents.values()))
            return first["data"], first.get("metadata", {})
        groups = grouped((text, process) for process, text in texts.items())
        shown = [_indented(label(group), text) for text, group in groups.items()]
        return {"text/plain": "\n".join(shown)}, {}

    def __repr__(self) -> str:
        return self._repr_mimebundle_()[0]["text/plain"]


def _indented(head: str, text: str) -> str:
    return f"{head} " + text.replace("\n", "\n" + " " * (len(head) + 1))


class Output:
    """The output of one cell on some of the processes."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._first = min(processes)
        self._folder = Folder(processes)
        self._live = {"stdout": "", "stderr": ""}
        self._live_at = 0.0
        self._values: dict[int, dict[str, Any]] = {}

    def put(self, process: int, message: dict[str, Any]) -> None:
        """Takes a message of a process's kernel."""
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream":
            self._folder.feed(process, content["name"], content["text"], time.monotonic())
        elif kind == "execute_result":
            self._values[process] = content
        elif process == self._first:
            self._folder.put(process, message, time.monotonic())

    def end(self, process: int) -> None:
        """The process has finished the cell."""
        self._folder.end(process, time.monotonic())

    def show(self, all_of_it: bool = False) -> None:
        """Shows what is due."""
        now = time.monotonic()
        for group, item in self._folder.take(now, all_of_it):
            if isinstance(item, Line):
                self._write(item.stream, f"{label(group)} {item.text}", "\n")
            else:
                _display(item["header"]["msg_type"], item["content"])
        if now > self._live_at:
            self._live_at = now + _LIVE_SECONDS
            self._show_unfinished()

    def _show_unfinished(self) -> None:
        for name, shown in self._live.items():
            found = self._folder.unfinished(name)
            text = "  ".join(f"{label(group)} {text}" for group, text in found)
            if text and text != shown:
                self._write(name, text, "")

    def _write(self, name: str, text: str, end: str) -> None:
        stream, over = getattr(sys, name), self._live[name]
        stream.write(("\r" if over else "") + text.ljust(len(over)) + end)
        self._live[name] = "" if end else text
        stream.flush()

    def value(self) -> Value | None:
        """The values of the last expression; None: there was none."""
        return Value(self._values) if self._values else None


def _display(kind: str, content: dict[str, Any]) -> None:
    shell: Any = get_ipython()
    publisher = shell.display_pub
    if kind == "clear_output":
        publisher.clear_output(content.get("wait", False))
    else:
        publisher.publish(
            content["data"],
            content.get("metadata"),
            transient=content.get("transient"),
            update=kind == "update_display_data",
        )
