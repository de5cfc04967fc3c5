"""What faults in one process of a job lead to, over Lockstep's engine, gloo and MPICH.

gloo is tried twice: on stock JAX without a launcher, and under ``lockstep run --collectives gloo``;
MPICH is under ``lockstep run --collectives mpi``.

    python benchmarks/faults.py                  # the whole table: about 40 minutes
    python benchmarks/faults.py --only shape kill --collectives lockstep gloo

Runs the program of the fault suite (``tests/faults/programs/fault.py``) once for each fault and
each implementation, with a time limit, and writes ``benchmarks/results/faults.json`` and
the table of ``docs/reference/faults.md`` (on stdout). ``mpi`` needs ``pip install mpich``.

Seconds are counted from the moment when the process with the fault comes to it, to the moment when
the last of the others has raised an exception. Nothing but `kill` and the like stops a process that
does not: what still runs after the limit is called a hang.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lockstep.system import process_tree
from support import MARK, marked

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "faults" / "programs" / "fault.py"
STOCK_JOB = Path(__file__).parent / "stock_job.py"
RESULTS = Path(__file__).parent / "results" / "faults.json"
STOCK = "stock"
COLLECTIVES = ("lockstep", STOCK, "gloo", "mpi")
TITLES = {
    "lockstep": "Lockstep",
    STOCK: "stock JAX, gloo",
    "gloo": "gloo under Lockstep",
    "mpi": "MPICH under Lockstep",
}
WAIT_SECONDS = 20
"""``--collective-timeout`` over gloo and MPI: what cannot be proved is ended then."""

# Fault: processes, the one with the fault, words for the table.
FAULTS = {
    "kill": (2, 1, "`kill -9` of process 1"),
    "kill 0": (2, 0, "`kill -9` of process 0"),
    "stop": (2, 1, "SIGSTOP (never continued)"),
    "exception": (2, 1, "an exception"),
    "exit": (2, 1, "`sys.exit(0)`"),
    "hard exit": (2, 1, "`os._exit(0)`"),
    "exit in the compiler": (2, 1, "`os._exit(7)` while it compiles"),
    "out of memory": (2, 1, "MemoryError"),
    "shorter loop": (2, 1, "a shorter loop"),
    "shape": (2, 1, "another shape (`psum`)"),
    "dtype": (2, 1, "another dtype (`psum`)"),
    "reduction": (2, 1, "`pmax` for `psum`"),
    "operation": (2, 1, "`all_gather` for `psum`"),
    "permutation": (3, 1, "another permutation, 3 processes"),
    "axis": (4, 1, "another mesh axis, 2 x 2 processes"),
    "swapped": (2, 1, "`psum`, `all_gather` swapped"),
    "swapped look-alikes": (2, 1, "two like `psum` of two programs swapped"),
    "swapped data": (2, 1, "one program on two arrays, swapped"),
    "circle of cliques": (4, 1, "mesh axes in opposite order, 2 x 2 processes"),
    "one-sided program": (2, 1, "one program more"),
    "last batch": (2, 1, "a last batch of 96 rows, the others' of 100"),
    "constant": (2, 1, "another constant in the traced function"),
    "branch": (2, 1, "one operation more, by a branch in Python"),
    "static argument": (2, 1, "another static argument"),
    "mesh order": (2, 1, "a mesh with the devices in another order"),
    "replicated values": (2, 1, "a replicated array of other values, `--check-replicas 1`"),
    "threads": (2, 1, "two threads that dispatch, in opposite order"),
    "service": (2, 1, "`kill -9` of JAX's coordination service"),
}
OPTIONS = {"replicated values": ["--check-replicas", "1"]}
"""Of `lockstep run`, for one fault."""
DIVERGENCE = set(list(FAULTS)[list(FAULTS).index("shape") :])
"""The faults in which the process with the fault is to raise too."""


@dataclasses.dataclass
class Outcome:
    """What one run came to."""

    fault: str
    collectives: str
    processes: int
    culprit: int
    kind: str
    """raised, hang, wrong number, killed (no exception), mixed: see `judge`."""
    seconds: float | None
    """From the fault to the last exception of a survivor."""
    ended_seconds: float | None
    """From the fault to the end of the job; None: the limit came first."""
    message: str
    """The first exception of a survivor, or what a process said when it was aborted."""
    each: dict[str, str]
    """By process."""
    aborted: bool = False
    """Whether a process that had raised was ended by SIGABRT, so that it could not go on."""
    named: bool = False
    """Whether the launcher's headline names the process with the fault."""
    status: int | None = None
    """The job's exit status; None: it was stopped at the limit, or is of an older version."""
    limit: float = 30
    """Seconds from the start of the run after which it was ended."""


def launcher(processes: int, collectives: str, more: list[str]) -> list[str]:
    if collectives == STOCK:
        return [str(STOCK_JOB), str(processes)]
    options = ["-n", str(processes), "-d", "1", "--collectives", collectives, *more]
    grace = 100_000
    if collectives in ("gloo", "mpi"):
        options += ["--stall-warning", "10", "--collective-timeout", str(WAIT_SECONDS)]
        grace = 10
    return ["-m", "lockstep", "run", *options, "--grace", str(grace)]


def run(name: str, collectives: str, limit: float) -> Outcome:
    processes, culprit, _ = FAULTS[name]
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        fault = "kill" if name == "kill 0" else name
        program = [str(PROGRAM), fault, str(culprit)]
        job = subprocess.Popen(
            [sys.executable, *launcher(processes, collectives, OPTIONS.get(name, [])), *program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: mark, "TMPDIR": folder},
        )
        try:
            out, _ = job.communicate(timeout=limit)
            ended = time.monotonic()
        except subprocess.TimeoutExpired:
            ended = None
            process_tree.kill(marked(mark) - {job.pid})
            try:
                out, _ = job.communicate(timeout=30)
            finally:
                job.kill()
        finally:
            process_tree.kill(marked(mark))
    outcome = judge(name, collectives, out.decode(errors="replace"), ended)
    status = None if ended is None else job.returncode
    return dataclasses.replace(outcome, limit=limit, status=status)


def judge(name: str, collectives: str, output: str, ended: float | None) -> Outcome:
    """What the lines of the program say, and how the processes ended."""
    processes, culprit, _ = FAULTS[name]
    said: dict[int, dict[str, Any]] = {i: {} for i in range(processes)}
    for process, line in re.findall(r"^\[ *(\d+)\] (\{.*\})$", output, re.MULTILINE):
        with contextlib.suppress(ValueError):
            said[int(process)].update(json.loads(line))
    planted = said[culprit].get("planted")
    failed = r"^(?:lockstep: )?process (\d+)(?: of \d+)? failed(?: first| [\d.]+ s later)?: (.*)$"
    failures = {int(i): words for i, words in re.findall(failed, output, re.MULTILINE)}
    of_another = r"^lockstep: (.*); so process (\d+) of \d+ failed \("
    failures |= {int(i): words for words, i in re.findall(of_another, output, re.MULTILINE)}
    each = {i: _of_process(said[i], failures.get(i, ""), ended) for i in range(processes)}
    judged = [i for i in each if i != culprit or name in DIVERGENCE]
    kinds = {each[i] for i in judged}
    raised = [said[i]["at"] for i in judged if "at" in said[i]]
    complete = len(raised) == len(judged) and planted is not None
    if kinds == {"hang"} and (warned := re.search(r"lockstep: waiting for (\d+) s", output)):
        kinds = {f"waits; report after {warned[1]} s"}
    texts = [said[i]["raised"] for i in judged if "raised" in said[i]]
    return Outcome(
        name,
        collectives,
        processes,
        culprit,
        " / ".join(sorted(kinds)) if planted is not None else "did not start",
        round(max(raised) - planted, 2) if complete else None,
        round(ended - planted, 2) if ended is not None and planted is not None else None,
        (texts or [_last_words(output)])[0][:1200],
        {str(i): text for i, text in each.items()},
        any("raised" in said[i] and "SIGABRT" in failures.get(i, "") for i in judged),
        _names(output, culprit),
    )


def _names(output: str, culprit: int) -> bool:
    """Whether the first line of the launcher's report says what process ``culprit`` has done."""
    headlines = (line for line in output.splitlines() if re.match("lockstep: .*process", line))
    first = next(headlines, "").replace("lockstep: ", "")
    consequence = (
        r"process \d+ of \d+ failed first: (?=.*process)|processes? [\d, -]+ wait.*"
        r"|; so processes? [\d, -]+ of .*"
    )
    return (
        re.search(rf"\bprocess(?:es)? [\d, -]*\b{culprit}\b", re.sub(consequence, "", first))
        is not None
    )


_OURS = re.compile(r"\S+Error: lockstep: |(?:only )?process|a collective|the same")
"""How the launcher's words for the end of a process begin, where the watch has ended it."""


def _of_process(said: dict[str, Any], failure: str, ended: float | None) -> str:
    if "number" in said or "wrong" in said:
        return "wrong number"
    if "raised" in said:
        return "raised"
    if ended is None and (not failure or "SIGKILL" in failure):
        return "hang"
    if ended is not None and _OURS.match(failure):
        return "ended"
    failure = re.split(r"\. | \(|; for details", failure)[0]
    return failure if failure else ("finished" if "finished" in said else "no exception")


def _last_words(output: str) -> str:
    words = r"(?i)\[ *\d+\] .*(?:fatal|terminate|abort|assert|error|failed).*"
    lines = re.findall(words, output.replace(f"{ROOT}/", ""))
    return lines[0] if lines else ""


def cell(outcome: Outcome) -> str:
    if outcome.kind == "raised" and outcome.seconds is not None:
        text = f"raises after {outcome.seconds:.1f} s"
        if outcome.ended_seconds is None:
            text += ", then does not end"
        elif outcome.aborted:
            text += f", aborted after {outcome.ended_seconds:.1f} s"
        elif outcome.ended_seconds > outcome.seconds + 5:
            text += f", ends after {outcome.ended_seconds:.0f} s"
        return text
    ends = {"raised", "ended", "no exception"}  # the launcher has stopped those without one
    if set(outcome.kind.split(" / ")) <= ends and outcome.ended_seconds is not None:
        return f"ended after {outcome.ended_seconds:.0f} s" + ", named" * outcome.named
    kind = outcome.kind.replace("exit code 143 / no exception", "aborted, no exception")
    text = kind.replace("wrong number", "**wrong number**").replace("hang", "**hang**")
    text = text.replace("finished", "goes on to its end")
    if outcome.kind == "wrong number" and outcome.status:
        text += ", then the job fails" + ", named" * outcome.named
    if outcome.ended_seconds is not None and "killed" in outcome.kind:
        text += f" after {outcome.ended_seconds:.1f} s"
    return text


def table(outcomes: list[Outcome]) -> str:
    by = {(o.fault, o.collectives): o for o in outcomes}
    lines = [
        "| fault in one process | " + " | ".join(TITLES[c] for c in COLLECTIVES) + " |",
        "|---" * (len(COLLECTIVES) + 1) + "|",
    ]
    for name, (_, _, words) in FAULTS.items():
        cells = [cell(by[name, c]) if (name, c) in by else "-" for c in COLLECTIVES]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--limit", type=float, default=60, help="seconds a run may take")
    parser.add_argument("--table", action="store_true", help="print the table of earlier results")
    args = parser.parse_args()
    known = {}
    if RESULTS.exists():
        for one in json.loads(RESULTS.read_text())["outcomes"]:
            known[one["fault"], one["collectives"]] = Outcome(**one)
    for collectives in [] if args.table else args.collectives:
        for name in args.only:
            if (name, collectives) == ("service", STOCK):
                continue  # the service is a part of process 0
            outcome = known[name, collectives] = run(name, collectives, args.limit)
            print(f"{name}, {collectives}: {cell(outcome)}", file=sys.stderr, flush=True)
            outcomes = [dataclasses.asdict(o) for o in known.values()]
            RESULTS.parent.mkdir(exist_ok=True)
            text = json.dumps({"outcomes": outcomes}, indent=1)
            RESULTS.write_text(text + "\n")
    print(table(list(known.values())))


if __name__ == "__main__":
    main()
