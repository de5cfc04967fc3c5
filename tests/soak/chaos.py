"""Faults on a schedule: trainings on four hosts that lose something, and an oracle.

    python tests/soak/chaos.py --faults 100 --seed 1 [--kinds 'link cut,disk full'] [--job 3]

Each host is a namespace with an sshd. The schedule comes from the seed; a job that is judged
wrong is printed with its number, and ``--job`` runs that one alone. Totals go to ``build/soak/``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))  # the imports below are found from here on

from soak import faults, oracle  # noqa: E402
from soak.chaos_job import HOSTS, LAUNCHER, Job, wait  # noqa: E402
from soak.leftovers import left_over  # noqa: E402
from soak.oracle import Struck, Table, Verdict  # noqa: E402
from soak.strikes import NotPlanted, Planted, plant  # noqa: E402
from ssh_hosts import SshHosts, WrongClocks, ssh_hosts  # noqa: E402

RESULTS = TESTS.parent / "build" / "soak"
CLOCK = TESTS / "hosts" / "programs" / "wall_clock.c"
GOES_ON = 240.0
"""Seconds within which a job goes on, or ends, after a fault was lifted."""
STEPS = 10
"""Between two checkpoints that show that it goes on."""
_MOUNTED = "LOCKSTEP_CHAOS_MOUNTED"


class Ground:
    """The hosts, and what the faults need there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved = folder / "saved"
        self.saved.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(self.saved)]
        subprocess.run(words, check=True, timeout=20)
        library = folder / "wall_clock.so"
        build = ["cc", "-shared", "-fPIC", str(CLOCK), "-o", str(library), "-ldl"]
        subprocess.run(build, check=True, timeout=60)
        self.clocks = {name: folder / f"clock-{name}" for name in HOSTS}
        for path in self.clocks.values():
            path.write_bytes(bytes(8))
        self._clocks = {n: WrongClocks(library, 0, 0, path) for n, path in self.clocks.items()}

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", str(self.saved)], check=True, timeout=20)

    @contextlib.contextmanager
    def hosts(self) -> Iterator[SshHosts]:
        with ssh_hosts(self.folder, [LAUNCHER, *HOSTS], clocks=self._clocks) as made:
            for name in HOSTS:
                where = str(made.folder / name / "tmp")
                made.run(name, ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", where])
            yield made


class Chaos:
    """Runs jobs until so many faults are planted."""

    def __init__(self, ground: Ground, hosts: SshHosts, seed: int, kinds: list[str]) -> None:
        self.ground, self.hosts, self.seed, self.kinds = ground, hosts, seed, kinds
        self.table = Table()
        self.planted = self.jobs = 0
        self.wrong: list[str] = []

    def run(self, most: int, only: int | None, minutes: float) -> None:
        end = time.monotonic() + 60 * minutes
        number = only or 0
        while self.planted < most and time.monotonic() < end:
            self.one(number, most)
            number += 1
            if only is not None:
                return

    def one(self, number: int, most: int) -> None:
        plan = faults.draw(self.seed, number, self.kinds)
        print(f"job {number}: {plan.processes} processes {' '.join(plan.options)}", flush=True)
        job = Job(self.hosts, self.ground.folder / f"job-{number}", self.ground.saved, plan)
        self.jobs += 1
        wrong = []
        for strike in plan.strikes:
            if not wait(lambda: job.has_ended or job.places(), GOES_ON) or job.has_ended:
                break
            if self.planted >= most:
                break
            time.sleep(strike.wait)
            struck, verdict = self.strike(job, strike)
            if struck:
                self.planted += len(struck)
                self.table.add(struck, verdict)
                wrong += self._wrong(struck, verdict)
        job.ask_to_end()
        if not wait(lambda: job.has_ended, GOES_ON):
            wrong.append("the job does not end")
            job.launcher.kill()
        if job.launcher.returncode == 0 or "WRONG" in job.out:
            wrong += oracle.wrong_numbers(job.out, {plan.processes, 3})
        wrong += left_over(self.hosts, HOSTS)
        if wrong:
            self._tell(number, job, wrong)

    def _wrong(self, struck: list[Struck], verdict: Verdict) -> list[str]:
        names = " and ".join(f"{each.kind} on {each.host}" for each in struck)
        took = "" if verdict.seconds is None else f" after {verdict.seconds:.1f} s"
        text = f"{names}: {verdict.what}{took}: {verdict.headline}"
        print(f"  {text[:400]}", flush=True)
        is_right = verdict.what == "survived" or verdict.what.endswith("right")
        return [] if is_right else [text]

    def _tell(self, number: int, job: Job, wrong: list[str]) -> None:
        self.wrong += [f"job {number}: {each}" for each in wrong]
        kept = RESULTS / f"chaos-{self.seed}-{number}.txt"
        RESULTS.mkdir(parents=True, exist_ok=True)
        kept.write_text("\n".join([*wrong, "", job.said, job.out]))
        print(f"  WRONG, see {kept}: --seed {self.seed} --job {number}", flush=True)
        for each in wrong:
            print(f"    {each[:600]}", flush=True)

    def strike(self, job: Job, strike: faults.Strike) -> tuple[list[Struck], Verdict]:
        before, began, attempt = len(job.said), time.monotonic(), job.attempt
        planted = self._plant(job, strike)
        struck = [Struck(each.fault.kind, each.host, each.process) for each in planted]
        seconds = None

        def failed() -> bool:
            nonlocal seconds
            if seconds is None and oracle.headlines(job.said[before:]):
                seconds = time.monotonic() - began
            return job.has_ended

        for each in sorted(planted, key=lambda each: each.fault.lasts):
            rest = began + each.fault.lasts - time.monotonic()
            wait(failed, max(0.0, rest))
            each.lift()
        step = job.step

        def goes_on() -> bool:
            failed()
            # An attempt that is about to end still makes steps.
            is_new = seconds is None or job.attempt > attempt
            return job.has_ended or (is_new and job.step >= step + STEPS)

        is_over = wait(goes_on, GOES_ON)
        verdict = oracle.judge(
            job.said[before:], struck, job.has_ended, job.launcher.returncode or 0
        )
        if not is_over:
            verdict = Verdict("hangs", f"{verdict.what}: {verdict.headline}")
        return struck, verdict._replace(seconds=seconds)

    def _plant(self, job: Job, strike: faults.Strike) -> list[Planted]:
        found = []
        for fault in strike.faults:
            with contextlib.suppress(NotPlanted):
                found.append(plant(job, fault, self.ground.saved, self.ground.clocks))
        return found

    def document(self) -> dict[str, object]:
        rows = {kind: dict(row) for kind, row in self.table.rows.items()}
        seconds = {kind: sorted(took) for kind, took in self.table.seconds.items()}
        return {
            "seed": self.seed,
            "jobs": self.jobs,
            "faults": self.planted,
            "wrong": self.wrong,
            "rows": rows,
            "seconds": seconds,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", type=int, help="this job of the seed alone")
    parser.add_argument("--kinds", help="only these, with commas; default: all")
    options = parser.parse_args()
    if not os.environ.get(_MOUNTED):
        # Its mounts are its own, and end with it.
        words = ["unshare", "-m", sys.executable, *sys.argv]
        os.execvpe("unshare", words, {**os.environ, _MOUNTED: "1"})
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the hosts end with this process
    kinds = options.kinds.split(",") if options.kinds else list(faults.KINDS)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        ground = Ground(Path(folder))
        with ground, ground.hosts() as hosts:
            chaos = Chaos(ground, hosts, options.seed, kinds)
            try:
                chaos.run(options.faults, options.job, options.minutes)
            finally:
                RESULTS.mkdir(parents=True, exist_ok=True)
                file = RESULTS / f"chaos-{options.seed}.json"
                file.write_text(json.dumps(chaos.document(), indent=1) + "\n")
                print(f"{chaos.planted} faults in {chaos.jobs} jobs\n{chaos.table}", flush=True)
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
