"""The main job, over the engine and over gloo, and the time per step of both: ``make demo``."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time

EXAMPLE = "examples/train_digits.py"
RUN = ["lockstep", "run", "-n", "2", "-d", "4"]
TIMEOUT_SECONDS = 600


def train(title: str, options: list[str], numbers: pathlib.Path) -> dict[str, float]:
    """Runs the example, its output on this terminal, and returns what it measured."""
    command = [*RUN, *options, EXAMPLE]
    print(f"\n{title}\n\n$ {' '.join(command)}", flush=True)
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", *command, "--json", str(numbers)],
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    print(f"{title}  {time.monotonic() - start:.0f} s", flush=True)
    return json.loads(numbers.read_text())


def main() -> int:
    runs: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        numbers = pathlib.Path(directory, "numbers.json")
        try:
            runs["lockstep"] = train("[1/2] training over lockstep", [], numbers)
            options = ["--collectives", "gloo"]
            runs["gloo"] = train("[2/2] training over gloo", options, numbers)
        except subprocess.CalledProcessError as error:
            return error.returncode

    print(f"\n{'collectives':12} {'time per step':>14} {'held-out accuracy':>18}")
    for name, run in runs.items():
        milliseconds = 1e3 * run["median_step_seconds"]
        print(f"{name:12} {milliseconds:11.2f} ms {run['accuracy']:18.3f}")
    ratio = runs["gloo"]["median_step_seconds"] / runs["lockstep"]["median_step_seconds"]
    print(f"gloo's median step takes {ratio:.1f} times as long.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
