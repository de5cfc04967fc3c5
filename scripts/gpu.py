"""Runs on a machine with one NVIDIA GPU what only a GPU can show, in less than nine minutes.

    python scripts/gpu.py                     # everything
    python scripts/gpu.py --only faults cost  # some parts

Two processes share the GPU over NCCL (``lockstep run --platform cuda --oversubscribe``). The parts:
``lockstep doctor``, the main job, what the recorder and ``lockstep report`` show of NCCL, what
recording costs, NCCL's own RAS port, what the watch makes of it under a profiler plug-in of the
user's, a job that hangs and continues from its checkpoint, ``lockstep bench --platform cuda``, low
precision, `lockstep.linalg` over two processes, the same beside cuSOLVER, and faults of the fault
suite. Each part has a limit of its own, ends without a result where less than that is left of the
nine minutes, and writes what it has found into ``benchmarks/results/gpu.json``, with the card and
the date; the documentation shows that file. It needs lockstep, jax with its CUDA plug-in, and no
network.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
PROGRAMS = ROOT / "scripts" / "gpu_programs.py"
FAULT = ROOT / "tests" / "faults" / "programs" / "fault.py"
FAULTS = (
    "shape",
    "operation",
    "swapped",
    "one-sided program",
    "last batch",
    "shorter loop",
    "exception",
    "exit",
    "kill",
    "stop",
)
RAS = ("localhost", 28028)
GPU_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_LEFT = 20
_FAULT_SECONDS = 30
WHOLE = 500
"""Seconds for all parts together."""


class Late(Exception):
    """A part has reached its limit."""


class Deadline:
    """When the part that runs now has to end."""

    at = float("inf")

    @classmethod
    def left(cls) -> float:
        return cls.at - time.monotonic()


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `Late` in what takes longer."""

    def stop(*_: object) -> None:
        raise Late(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    Deadline.at = time.monotonic() + seconds
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def end(job: subprocess.Popen[Any]) -> None:
    """Ends a launcher with its processes."""
    for ask in (job.terminate, job.kill):
        if job.poll() is None:
            ask()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(_LEFT)


def start(program: list[str], out: Any, **environ: str) -> subprocess.Popen[Any]:
    """A job of two processes on the GPU; ``program``: options of the launcher may come first."""
    launch = [sys.executable, "-m", "lockstep", "run", "-n", "2", "--platform", "cuda"]
    return subprocess.Popen(
        [*launch, "--oversubscribe", *program],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        env={**os.environ, **GPU_MEMORY, **environ},
    )


def run(
    program: list[str], options: tuple[str, ...] = (), limit: float = 90, **environ: str
) -> dict[str, Any]:
    """Such a job: its status, its output and how long it took."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        job = start([*options, *program], out, **environ)
        try:
            status: int | str = job.wait(limit)
        except subprocess.TimeoutExpired:
            status = f"ended after {limit:g} s"
        finally:
            end(job)
        out.seek(0)
        text = out.read()
    return {"status": status, "seconds": round(time.monotonic() - started, 1), "output": text}


def said(output: str) -> list[dict[str, Any]]:
    """The JSON objects that the processes have printed."""
    lines = re.findall(r"^\[ *\d+\] (\{.*\})$", output, re.MULTILINE)
    return [json.loads(line) for line in lines]


def words(output: str, most: int = 12) -> list[str]:
    """What the launcher and the watch say, without tracebacks and paths."""
    own = r"^(?:\[ *\d+\] )?(lockstep: .*|(?:> |  )process(?:es)? .*| {4}\S.*Error: lockstep: .*)$"
    found = [line for line in re.findall(own, output, re.MULTILINE) if "hook" not in line]
    paths = ("jaxlib", "for details", "complete logs")
    kept = (line for line in found if not any(word in line for word in paths))
    return list(dict.fromkeys(kept))[-most:]  # the processes say the same


def facts() -> dict[str, Any]:
    code = (
        "import json, jax, jaxlib, platform\n"
        "from importlib.metadata import distributions\n"
        "d = jax.devices()[0]\n"
        "v = {x.metadata['Name']: x.version for x in distributions()}\n"
        "kept = {k: x for k, x in v.items() if k.startswith(('jax', 'nvidia-nccl', 'lockstep'))}\n"
        "print(json.dumps({'card': d.device_kind, 'python': platform.python_version(),"
        " 'runtime': d.client.platform_version, 'packages': kept}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    smi = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(smi, capture_output=True, text=True, timeout=60).stdout.strip()
    return {**json.loads(out.splitlines()[-1]), "driver": driver}


def collectives() -> dict[str, Any]:
    """All collectives over NCCL compared with NumPy, and what the records show of them."""
    with tempfile.TemporaryDirectory() as folder:
        done = run([str(PROGRAMS), "collectives"], ("--log-dir", folder), limit=120)
        kept = run([str(PROGRAMS), "fail"], ("--log-dir", folder), limit=120)
        [run_dir] = sorted(Path(folder).glob("run_*"))[-1:]
        report = [sys.executable, "-m", "lockstep", "report", str(run_dir)]
        summary = subprocess.run(
            [*report, "--summary"], capture_output=True, text=True, timeout=60
        ).stdout
    return {
        "status": done["status"],
        "checked": said(done["output"]),
        "failed": words(kept["output"]),
        "summary": summary.splitlines(),
    }


def main_job() -> dict[str, Any]:
    """The digits of `make demo`, trained on two processes."""
    done = run([str(ROOT / "examples" / "train_digits.py")], limit=120)
    found = re.findall(r"^\[0\] (step .*|held-out .*)$", done["output"], re.MULTILINE)
    return {"status": done["status"], "said": found}


def cost() -> dict[str, Any]:
    """The time of a small all-reduce in a loop: with the recorder, without it, with nothing."""
    found = {}
    ways = {
        "recorded": {},
        "not recorded": {"LOCKSTEP_RECORD": "0"},
        "recorded with lines": {"LOCKSTEP_STRICT": "1"},
    }
    for name, environ in ways.items():
        done = run([str(PROGRAMS), "cost"], limit=90, **environ)
        found[name] = said(done["output"]) or words(done["output"])
    return found


def faults(names: Sequence[str] = FAULTS) -> dict[str, Any]:
    """Each fault, with what the job ends with and the seconds from the fault until then."""
    found: dict[str, Any] = {}
    for fault in names:
        if Deadline.left() < _FAULT_SECONDS:
            found[fault] = {"status": "not run: no time was left"}
            continue
        options = ("--stall-warning", "5", "--collective-timeout", "12")
        done = run([str(FAULT), fault, "1"], options, limit=45)
        end = words(done["output"])
        found[fault] = {"status": done["status"], "seconds": done["seconds"], "said": end}
        print(f"  {fault}: {done['seconds']} s", *end[:1], flush=True)
    for name in ("compile_alone", "launch_alone"):
        if Deadline.left() > _FAULT_SECONDS:
            options = ("--stall-warning", "5", "--collective-timeout", "10")
            done = run([str(PROGRAMS), name], options, limit=_FAULT_SECONDS)
            own = {"status": done["status"], "said": words(done["output"])}
            found[name.replace("_", " ")] = own
    return found


def restart() -> dict[str, Any]:
    """A job that hangs, is ended, starts again, and continues from its checkpoint."""
    options = ("--stall-warning", "4", "--collective-timeout", "8", "--max-restarts", "1")
    with tempfile.TemporaryDirectory() as folder:
        done = run([str(PROGRAMS), "restart", f"{folder}/step"], options, limit=60)
    own = {"status": done["status"], "seconds": done["seconds"]}
    return {**own, "steps": said(done["output"]), "said": words(done["output"])}


def ask_ras(commands: str, timeout: float = 10) -> str:
    with socket.create_connection(RAS, timeout) as connection:
        connection.sendall(commands.encode())
        received = b""
        while part := connection.recv(65536):
            received += part
    return received.decode()


def ras() -> dict[str, Any]:
    """What NCCL's RAS port says of a job in which one process does not come to a collective."""
    job = start(["--collective-timeout", "60", str(PROGRAMS), "sleep"], subprocess.DEVNULL)
    found: dict[str, Any] = {}
    try:
        time.sleep(15)
        commands = "SET FORMAT json\nTIMEOUT 3\nSTATUS\n"
        found["json"] = [ask_ras(commands) for _ in range(2)]
        found["text"] = ask_ras("VERBOSE STATUS\n")
        found["protocol"] = ask_ras("CLIENT PROTOCOL 1\nSET FORMAT json\nSTATUS\n")
    except OSError as error:
        found["error"] = str(error)
    finally:
        end(job)
    return found


def ras_joined() -> dict[str, Any]:
    """What the watch says under a plug-in of the user's: launches, joined with NCCL's counts."""
    found = {}
    options = ("--stall-warning", "6", "--collective-timeout", "14")
    for name in ("sleep", "lag_inside"):
        done = run([str(PROGRAMS), name], options, limit=40, NCCL_PROFILER_PLUGIN="libmine.so")
        own = {"status": done["status"], "seconds": done["seconds"]}
        found[name] = {**own, "said": words(done["output"])}
    return found


def doctor() -> dict[str, Any]:
    """What ``lockstep doctor`` says of the GPU."""
    command = [sys.executable, "-m", "lockstep", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    checks = json.loads(done.stdout)["checks"]
    return {"status": done.returncode, "checks": [c for c in checks if "GPU" in c["area"]]}


def bench() -> dict[str, Any]:
    """The collectives of two processes that take turns: whether they are right, not how fast."""
    with tempfile.NamedTemporaryFile("r") as file:
        command = [sys.executable, "-m", "lockstep", "bench", "--platform", "cuda"]
        command += ["--oversubscribe", "-n", "2", "--sizes", "1KiB,1MiB", "--repeats", "2"]
        job = subprocess.Popen(
            [*command, "--json", file.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said = job.communicate()[1]
        finally:
            end(job)
        report = json.loads(file.read() or "{}")
    if not report:
        return {"status": job.returncode, "said": said.splitlines()[-5:]}
    cases = [
        {"op": case["op"], "bytes": case["bytes"], **case["results"]["nccl"]}
        for case in report["cases"]
    ]
    dropped = ("blocks", "call_seconds")
    kept = [{name: v for name, v in case.items() if name not in dropped} for case in cases]
    return {"status": job.returncode, "platform": report["job"]["platform"], "cases": kept}


def low_precision() -> dict[str, Any]:
    done = run([str(PROGRAMS), "precision"])
    return {"status": done["status"], "checked": said(done["output"])}


def solvers() -> dict[str, Any]:
    """Each family of `lockstep.linalg` on two processes: whether it is right."""
    done = run([str(PROGRAMS), "solvers"], limit=150)
    failed = {} if done["status"] == 0 else {"said": words(done["output"])}
    return {"status": done["status"], "right": said(done["output"]), **failed}


def linalg() -> dict[str, Any]:
    """`lockstep.linalg` on the card beside cuSOLVER: right, and how fast."""
    found: dict[str, Any] = {}
    right = [sys.executable, str(PROGRAMS), "linalg"]
    done = subprocess.run(right, capture_output=True, text=True, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found["right"] = [json.loads(line) for line in lines] or done.stderr[-1500:]
    for dtype, routine, sizes in (
        ("float64", "posv", ("4096", "8192")),
        ("float32", "posv", ("8192",)),
        ("float64", "potri", ("4096",)),
        ("float64", "syevd", ("2048",)),
    ):
        with tempfile.NamedTemporaryFile("r") as file:
            command = [sys.executable, str(ROOT / "benchmarks" / "linalg.py"), "--gpu"]
            command += ["--routines", routine, "--sizes", *sizes, "--dtype", dtype]
            command += ["--json", file.name]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                key = f"{routine} {dtype}"
                found[key] = json.loads(file.read() or "null") or done.stderr[-1500:]
            except subprocess.TimeoutExpired:
                found[f"{routine} {dtype}"] = "not done after 120 s"
    return found


PARTS: dict[str, tuple[Callable[[], dict[str, Any]], float]] = {
    "facts": (facts, 20),
    "doctor": (doctor, 20),
    "collectives": (collectives, 25),
    "main job": (main_job, 25),
    "cost": (cost, 40),
    "ras": (ras, 30),
    "ras joined": (ras_joined, 80),
    "restart": (restart, 45),
    "bench": (bench, 40),
    "low precision": (low_precision, 15),
    "solvers": (solvers, 80),
    "linalg": (linalg, 80),
    "faults": (faults, 220),
}
"""Each part with the seconds that it may take, where all before it have not taken more."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file of the results")
    args = parser.parse_args()
    found = json.loads(args.json.read_text()) if args.json.exists() else {}
    begun = time.monotonic()
    for name in args.only:
        started = time.monotonic()
        do, limit = PARTS[name]
        try:
            with limited(min(limit, begun + WHOLE - started)):
                part = do()
        except Exception as error:
            part = {"error": f"{type(error).__name__}: {error}"}
        today = datetime.date.today().isoformat()
        took = round(time.monotonic() - started, 1)
        found[name] = {"date": today, "took": took, **part}
        args.json.parent.mkdir(exist_ok=True, parents=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {took} s", flush=True)
    failed = [name for name in args.only if "error" in found[name]]
    print("failed: " + ", ".join(failed) if failed else "all parts ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
