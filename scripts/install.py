"""Installs the working tree into an environment, and shows what each step does.

It runs before anything is installed, so it uses the standard library only. In a terminal one line
per step is rewritten while the step runs; elsewhere a step is one line, with a heartbeat between.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEP_TIMEOUT_SECONDS = 3600
STOP_TIMEOUT_SECONDS = 5
POLL_SECONDS = 0.1
RAW_PROGRESS_SINCE = (24, 1)
"""The first pip with ``--progress-bar raw``, which writes bytes as lines of text."""
SPINNER = "|/-\\"
TOOLS = ("cmake", "ninja")
DEPENDENCIES = "dependencies"
INSTALLED = ".installed-dependencies"
"""In an environment: what `needs` was when it was installed, a line each."""


@dataclasses.dataclass(frozen=True)
class Step:
    title: str
    command: list[str]


@dataclasses.dataclass
class Output:
    """What the command of a step has written. Filled by one thread, read by another."""

    lines: list[str] = dataclasses.field(default_factory=list)
    activity: str = ""

    def read(self, pipe: IO[str]) -> None:
        for line in pipe:
            progress = re.match(r"Progress (\d+) of (\d+)", line)
            if progress:
                done, total = (int(number) / 1e6 for number in progress.groups())
                self.activity = f"{self.activity.partition(' (')[0]} ({done:.0f} of {total:.0f} MB)"
            else:
                self.lines.append(line)
                self.activity = activity(line) or self.activity


def activity(line: str) -> str | None:
    """What a line of pip, scikit-build-core or Ninja says is happening; None if nothing new."""
    text = line.strip()
    if found := re.match(r"\[(\d+)/(\d+)\] ", text):
        return f"compiling the engine, {found[1]} of {found[2]}"
    if found := re.match(r"(Downloading|Using cached) (?:\S*/)?([^-\s/]+)-\S+( \(.*\))?", text):
        verb = "downloading" if found[1] == "Downloading" else "in the cache:"
        return f"{verb} {found[2]}{found[3] or ''}"
    if found := re.match(r"Collecting ([\w.-]+)", text):
        return f"looking for {found[1]}"
    if found := re.match(r"Installing collected packages: (.*)", text):
        return f"installing {len(found[1].split(','))} packages"
    if found := re.match(r"\*\*\* (Configuring CMake|Building project|Installing project)", text):
        return found[1].lower()
    return None


class Screen:
    """Shows a running step: in a terminal a line that is rewritten, elsewhere a heartbeat."""

    def __init__(self, label: str, heartbeat: float) -> None:
        self.label = label
        self.heartbeat = heartbeat
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.start = self.last = time.monotonic()
        self.frame = 0

    def update(self, activity: str) -> None:
        now = time.monotonic()
        line = f"{self.label}  {now - self.start:.0f} s  {activity}".rstrip()
        if self.terminal:
            self.frame += 1
            width = shutil.get_terminal_size().columns - 3
            spinner = SPINNER[self.frame % len(SPINNER)]
            print(f"\r\033[K{line[:width]} {spinner}", end="", flush=True)
        elif now - self.last >= self.heartbeat:
            self.last = now
            print(f"{line} ...", flush=True)

    def finish(self, words: str = "") -> None:
        erase = "\r\033[K" if self.terminal else ""
        print(f"{erase}{self.label}  {words}{time.monotonic() - self.start:.0f} s", flush=True)


@dataclasses.dataclass
class Running:
    step: Step
    process: subprocess.Popen[str]
    output: Output
    reader: threading.Thread


def start(step: Step) -> Running:
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert process.stdout is not None
    output = Output()
    reader = threading.Thread(target=output.read, args=[process.stdout], daemon=True)
    reader.start()
    return Running(step, process, output, reader)


def finish(running: Running, label: str, heartbeat: float) -> int:
    """Shows the command until it ends, and on failure all that it has written. Returns its
    status."""
    screen, output = Screen(label, heartbeat), running.output
    try:
        status = wait(running.process, screen, output)
    except KeyboardInterrupt:
        stop(running.process)
        screen.finish("interrupted after ")
        raise
    running.reader.join(timeout=5)  # a process left in the background may still hold the pipe
    screen.finish("failed after " if status else "")
    if status:
        report(running.step, output, status)
    return status


def wait(process: subprocess.Popen[str], screen: Screen, output: Output) -> int:
    deadline = time.monotonic() + STEP_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            screen.update(output.activity)
    stop(process)
    output.lines.append(f"Stopped: it did not end within {STEP_TIMEOUT_SECONDS} s.\n")
    return process.returncode or 1


def stop(process: subprocess.Popen[str]) -> None:
    """Ends the command with all that it has started: compilers too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_TIMEOUT_SECONDS)
            return
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue


def report(step: Step, output: Output, status: int) -> None:
    print(f"\n$ {shlex.join(step.command)}", file=sys.stderr)
    sys.stderr.write("".join(output.lines))
    print(f"\nThe step '{step.title}' failed with status {status}.", file=sys.stderr, flush=True)


def pip_install(environment: pathlib.Path) -> list[str]:
    python = str(environment.absolute() / "bin" / "python")
    found = next(environment.glob("lib/python*/site-packages/pip-*.dist-info"), None)
    version = re.match(r"pip-(\d+)\.(\d+)", found.name) if found else None
    raw = version is not None and tuple(map(int, version.groups())) >= RAW_PROGRESS_SINCE
    progress = ["--progress-bar", "raw" if raw else "off"]
    # Python compiles a module when it is first imported; pip compiles all, in half of its time.
    return [python, "-m", "pip", "install", "--no-compile", *progress]


def requirements(extras: list[str]) -> list[str]:
    """What the package needs at run time, with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return project["dependencies"] + [item for extra in extras for item in optional[extra]]


def needs(extras: list[str]) -> set[str]:
    """Everything but the package itself, and the versions that pip is held to."""
    built_by = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    files = map(pathlib.Path, os.environ.get("PIP_CONSTRAINT", "").split())
    held = [line for file in files if file.is_file() for line in file.read_text().splitlines()]
    return {*built_by, *TOOLS, *requirements(extras), *(f"held to {line}" for line in held)}


def has_dependencies(environment: pathlib.Path, extras: list[str]) -> bool:
    """Whether an earlier run has installed all of them; pip takes seconds to find that out."""
    file = environment / INSTALLED
    return file.exists() and needs(extras) <= set(file.read_text().splitlines())


def steps(environment: pathlib.Path, extras: list[str]) -> list[Step]:
    """The package is installed, not linked: what the tests import is what a user gets."""
    pip = pip_install(environment)
    built_by = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    # One for each environment: scikit-build-core empties one that another environment has used.
    build = f"--config-settings=build-dir=build/{environment.name}"
    package = Step(
        "the engine", [*pip, "--verbose", "--no-build-isolation", "--no-deps", build, "."]
    )
    if has_dependencies(environment, extras):
        return [package]
    return [
        Step("build tools", [*pip, *built_by, *TOOLS]),
        Step(DEPENDENCIES, [*pip, *requirements(extras)]),
        package,
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--extras", default="", help="extras of the package, with commas")
    parser.add_argument("--heartbeat", type=float, default=10, help="seconds, without a terminal")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    # SIGTERM ends the step as Ctrl-C does, instead of leaving pip behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    environment: pathlib.Path = options.venv
    extras = [extra for extra in options.extras.split(",") if extra]
    print(f"Installing lockstep into {environment}.", flush=True)
    # pip comes last into a new environment, so without it the environment is not complete.
    new = Step("Python environment", [sys.executable, "-m", "venv", str(environment.absolute())])
    plan = [new] if not (environment / "bin" / "pip").exists() else []
    total = len(plan) + len(steps(environment, extras))
    running: list[Running] = []
    try:
        for number in range(1, total + 1):
            # Made anew: what pip can do is known once the environment is there.
            following = [*plan, *steps(environment, extras)][number - 1 :]
            # pip loads the dependencies by one core; the compiler has the others meanwhile.
            beside = following[: 2 if following[0].title == DEPENDENCIES else 1]
            for step in beside[len(running) :]:
                running.append(start(step))
            label = f"[{number}/{total}] {following[0].title:18}"
            if status := finish(running.pop(0), label, options.heartbeat):
                return status if status > 0 else 128 - status
    except KeyboardInterrupt:
        return 130
    finally:
        for left in running:
            stop(left.process)
    if not has_dependencies(environment, extras):
        (environment / INSTALLED).write_text("\n".join(sorted(needs(extras))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
