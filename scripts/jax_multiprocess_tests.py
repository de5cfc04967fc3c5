"""Runs JAX's own multi-process tests over several collectives implementations, side by side.

    python scripts/jax_multiprocess_tests.py JAX_CHECKOUT [-n 2 -n 4] [-d 4] [--files array ...]
    python scripts/jax_multiprocess_tests.py JAX_CHECKOUT --collectives gloo --collectives tls
    python scripts/jax_multiprocess_tests.py JAX_CHECKOUT --collectives gloo --collectives watched

The checkout is jax-ml/jax at the tag of the installed jax (``git checkout jax-v0.11.0``). The tests
are not edited: a ``sitecustomize`` on the path of their processes imports lockstep before jax; over
gloo, JAX is as it is. They need absl-py and portpicker; without cloudpickle one file is skipped.
Prints one row per file: tests passed / failed / skipped in every process, for each implementation,
and the end of the logs of a run that ended badly. Exit status 1 when an implementation passes less
than gloo.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

BETWEEN_HOSTS: Mapping[str, Mapping[str, str]] = {
    "tls": {},
    "plain": {"LOCKSTEP_ENCRYPTION": "0"},
    "ucx": {
        "LOCKSTEP_ENCRYPTION": "0",
        "LOCKSTEP_TRANSPORT": "ucx",
        "UCX_TLS": "tcp",
    },
}
"""The engine between hosts: each process takes itself for alone on its host."""
WATCHED = "watched"
"""gloo, with Lockstep's record and comparison of launches: a test that fails is a false alarm."""
IMPLEMENTATIONS = ("gloo", "lockstep", WATCHED, *BETWEEN_HOSTS)
_OUTCOME = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+)", re.MULTILINE)
_SITECUSTOMIZE = "import lockstep\n"
_ON_ITS_OWN_HOST = f"""
import os
os.environ["LOCKSTEP_HOST_ID"] = str(os.getpid())
{_SITECUSTOMIZE}"""

Outcomes = dict[str, str]


def parse_outcomes(log: str) -> Outcomes:
    """Test name -> ``OK``, ``FAILED`` or ``SKIPPED``, from one process's log."""
    return {name: outcome for outcome, name in _OUTCOME.findall(log)}


def combine(processes: Sequence[Outcomes]) -> Outcomes:
    """A test passed when it passed in every process; a process that never ran it failed it."""
    names = sorted(set().union(*processes))
    combined = {}
    for name in names:
        seen = {outcomes.get(name, "FAILED") for outcomes in processes}
        combined[name] = seen.pop() if len(seen) == 1 else "FAILED"
    return combined


def count(outcomes: Mapping[str, str], crashed: bool) -> str:
    counts = collections.Counter(outcomes.values())
    text = f"{counts['OK']} / {counts['FAILED']} / {counts['SKIPPED']}"
    return text + (" exit!" if crashed else "")


def end_of_logs(logs: pathlib.Path, lines: int = 20) -> str:
    """The last lines of each log of a run, which are not kept without ``--logs``."""
    text = ""
    for log in sorted(logs.glob("*.log")):
        tail = log.read_text(errors="replace").splitlines()[-lines:]
        text += f"    {log.name}, the end of it:\n" + "".join(f"      {line}\n" for line in tail)
    return text


def _environment(implementation: str, devices: int, scratch: pathlib.Path) -> dict[str, str]:
    hook = scratch / "hook"
    hook.mkdir(exist_ok=True)
    between_hosts = {}
    watched = {"LOCKSTEP_COLLECTIVES": "gloo"} if implementation == WATCHED else {}
    if implementation in BETWEEN_HOSTS:
        key = scratch / "key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        between_hosts = {**BETWEEN_HOSTS[implementation], "LOCKSTEP_KEY_FILE": str(key)}
    program = _ON_ITS_OWN_HOST if between_hosts else _SITECUSTOMIZE
    (hook / "sitecustomize.py").write_text("" if implementation == "gloo" else program)
    path = [str(hook), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **between_hosts,
        **watched,
        "PYTHONPATH": os.pathsep.join(path),
        "TEST_UNDECLARED_OUTPUTS_DIR": str(scratch),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
    }


def run_file(
    test: pathlib.Path,
    processes: int,
    devices: int,
    implementation: str,
    timeout: float,
    logs: pathlib.Path,
) -> tuple[Outcomes, bool]:
    """Runs one file; returns its outcomes and whether the run ended badly."""
    logs.mkdir(parents=True, exist_ok=True)
    # On a busy machine the defaults fail tests: 5 s between heartbeats, and 10 s that the processes
    # try to connect to process 0, after which all of them end before they run any test.
    patience = ["--heartbeat_timeout=60", "--initialization_timeout=120"]
    command = [sys.executable, str(test), f"--num_processes={processes}", *patience]
    with open(logs / "controller.log", "wb") as log:
        controller = subprocess.Popen(
            command,
            cwd=test.parent,
            env=_environment(implementation, devices, logs),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = controller.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(controller.pid, signal.SIGKILL)
            status = controller.wait()
    texts = [logs / f"jax_{i}_stderr.log" for i in range(processes)]
    parsed = [parse_outcomes(p.read_text(errors="replace")) if p.exists() else {} for p in texts]
    return combine(parsed), status != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("-n", type=int, action="append", help="processes (default: 2 and 4)")
    parser.add_argument("-d", type=int, default=1, help="devices per process")
    parser.add_argument("--collectives", action="append", choices=IMPLEMENTATIONS)
    parser.add_argument("--files", nargs="*", help="names of test files, without _test.py")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per file")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the logs here")
    arguments = parser.parse_args()
    implementations = arguments.collectives or IMPLEMENTATIONS[:2]
    tests = sorted((arguments.checkout / "tests" / "multiprocess").glob("*_test.py"))
    if not tests:
        parser.error(f"{arguments.checkout} has no tests/multiprocess: is it a checkout of jax?")
    if arguments.files:
        tests = [t for t in tests if t.name.removesuffix("_test.py") in arguments.files]

    worse = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = (arguments.logs or pathlib.Path(scratch)).absolute()
        for n in arguments.n or (2, 4):
            print(f"\n{n} processes x {arguments.d}: passed / failed / skipped")
            print(f"| file | {' | '.join(implementations)} |\n|---|{'---|' * len(implementations)}")
            for test in tests:
                row, outcomes, ends = [], {}, []
                for name in implementations:
                    logs = root / f"{n}x{arguments.d}" / name / test.stem
                    outcomes[name], crashed = run_file(
                        test, n, arguments.d, name, arguments.timeout, logs
                    )
                    row.append(count(outcomes[name], crashed))
                    if crashed:
                        ends.append(end_of_logs(logs))
                print(f"| {test.stem} | {' | '.join(row)} |", flush=True)
                worse += _report_differences(outcomes)
                print("".join(ends), end="", flush=True)
    return 1 if worse else 0


def _report_differences(outcomes: Mapping[str, Outcomes]) -> int:
    """Prints the tests that gloo passes and another implementation does not; returns how many."""
    passed = {test for test, outcome in outcomes.get("gloo", {}).items() if outcome == "OK"}
    worse = 0
    for name, results in outcomes.items():
        for test in sorted(passed):
            if results.get(test) != "OK":
                print(f"    {name}: {test} {results.get(test, 'did not run')}, passes with gloo")
                worse += 1
    return worse


if __name__ == "__main__":
    sys.exit(main())
