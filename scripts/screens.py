"""Keeps what the commands of the documentation's pictures print, for `make figures`.

    python scripts/screens.py        # writes benchmarks/results/screens/

`lockstep top`, `report --summary` and a trace of a job with a straggler, `lockstep inspect` of 64
devices, and `lockstep.show_sharding`: each as it is printed on a terminal, with its colours.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCREENS = ROOT / "benchmarks" / "results" / "screens"
LOCKSTEP = [sys.executable, "-m", "lockstep"]
PLAN = (
    "inspect -n 16 -d 4 --processes-per-host 4 --link 20us,10GB/s --link-between 50us,1GB/s "
    "inspect_step.py:train_step"
)
WINDOW = 300_000.0
"""Microseconds of the trace that are kept."""


def said(words: Sequence[str], columns: int, folder: str) -> str:
    environ = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(columns)}
    command = [*LOCKSTEP, *words]
    found = subprocess.run(command, cwd=ROOT / folder, env=environ, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{' '.join(words)}: status {found.returncode}\n{found.stderr}")
    return found.stdout


def window(trace: dict[str, Any]) -> dict[str, Any]:
    """The middle of a trace, from 0: what began within `WINDOW`, and the names of its tracks."""
    times = [event["ts"] for event in trace["traceEvents"] if "ts" in event]
    start = (min(times) + max(times)) / 2
    kept = []
    for event in trace["traceEvents"]:
        if "ts" not in event:
            kept.append(event)
        elif 0 <= (since := event["ts"] - start) < WINDOW:
            kept.append(event | {"ts": since})
    return trace | {"traceEvents": kept}


def straggler() -> None:
    run = [*LOCKSTEP, "run", "-n", "3", "straggler.py"]
    with (
        subprocess.Popen(
            run, cwd=ROOT / "docs" / "reference", stdout=subprocess.PIPE, text=True
        ) as job,
        tempfile.TemporaryDirectory() as folder,
    ):
        assert job.stdout is not None
        for line in job.stdout:
            if "step 200:" in line:
                break
        pid, trace = str(job.pid), f"{folder}/trace.json"
        keep("top.ansi", said(["top", "--once", "--pid", pid], 100, "."))
        report = ["report", "--pid", pid, "--summary", "--trace", trace]
        keep("summary.ansi", said(report, 100, "."))
        kept = window(json.loads(Path(trace).read_text()))
        keep("straggler.json", json.dumps(kept, indent=1) + "\n")
        job.send_signal(signal.SIGINT)
        job.communicate()


def keep(name: str, text: str) -> None:
    """Keeps ``text``, with another folder than that of this machine."""
    (SCREENS / name).write_text(re.sub(rf"{ROOT}[\w/]*/", "/home/me/", text))


def main() -> None:
    SCREENS.mkdir(exist_ok=True)
    straggler()
    keep("inspect.ansi", said(PLAN.split(), 132, "examples"))
    shown = ["run", "-n", "2", "-d", "4", "--no-prefix", "sharding.py"]
    keep("show_sharding.ansi", said(shown, 80, "docs/reference"))


if __name__ == "__main__":
    main()
