"""The listings of a page that a test can run: ```console blocks, and the files with a title."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_VARIES = [
    (re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}"), "RUN"),
    (re.compile(r"0x[0-9a-f]+"), "ADDRESS"),
    (re.compile(r"/\S*/"), ""),  # folders
    (re.compile(r" on [\w.-]+\)"), " on HOST)"),
    (re.compile(r"\d+(\.\d+)?"), "N"),
    (re.compile(r"\bN [µm]?s\b"), "N SECONDS"),
    (re.compile("━+"), "━"),  # tables are as wide as their numbers
    (re.compile("─+"), "─"),
]


@dataclasses.dataclass(frozen=True)
class Command:
    """A command and the lines that the page shows under it.

    Several lines of commands above one output are one command.
    """

    line: str
    shown: tuple[str, ...]


def commands(page: str) -> list[Command]:
    """All of the console blocks of ``page``."""
    found = []
    for kind, _, body in _BLOCK.findall(page):
        if kind == "console":
            above = ""
            for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
                line, *shown = part.rstrip().splitlines()
                above += line
                if shown:
                    found.append(Command(above, tuple(shown)))
                above = "" if shown else f"{above}\n"
            if above:
                found.append(Command(above.rstrip(), ()))
    return found


def output_of(
    line: str, folder: Path, seconds: float, bin: Path = Path(sys.executable).parent
) -> str:
    """What a line prints in ``folder``, which gets the programs of all pages and the examples.

    ``bin`` is the folder of the environment's commands. Nothing of the line outlives the call.
    """
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name, text in files(page.read_text()).items():
            (folder / name).write_text(text)
    (folder / "examples").symlink_to(ROOT / "examples")
    process = subprocess.Popen(
        ["bash", "-c", line.replace("/tmp/", f"{folder}/")],
        cwd=folder,
        env=os.environ | {"PATH": f"{bin}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a line may start several processes
    )
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def listed_lines(page: str) -> list[str]:
    """The lines of the other listings, without a prompt; continued lines are one."""
    text = re.sub(r"^```(?:console|python|yaml)\b.*?^```$", "", page, flags=re.M | re.S)
    fenced = re.findall(r"^```\w*[^\n]*\n(.*?)^```$", text, re.M | re.S)
    indented = re.findall(
        r"^ {4,}(.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M
    )
    lines = "\n".join([*fenced, *indented])
    return [line.strip().removeprefix("$ ") for line in re.sub(r"\\\n\s*", "", lines).splitlines()]


def in_sentences(page: str) -> list[str]:
    """The inline code of a page, each piece on one line."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    text = re.sub(r"^ {4,}.*$", "", text, flags=re.M)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def files(page: str) -> dict[str, str]:
    """The files that ``page`` shows, by their titles."""
    return {title: body for _, title, body in _BLOCK.findall(page) if title}


def same_words(line: str) -> str:
    """``line`` without what differs from run to run: numbers, addresses, folders, hosts."""
    for pattern, instead in _VARIES:
        line = pattern.sub(instead, line)
    return " ".join(line.split())


def missing(shown: tuple[str, ...], output: str) -> list[str]:
    """The lines of a page that ``output`` does not have, in any order."""
    # Whether an exit code is known when an error is made differs between runs.
    there = {same_words(line).replace(" (exit code 0)", "") for line in output.splitlines()}
    words = {line: same_words(line).replace(" (exit code 0)", "") for line in shown}
    return [line for line in shown if line.strip() != "..." and words[line] not in there]
