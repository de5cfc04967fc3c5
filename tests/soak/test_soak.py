"""The soak itself: what it draws, how it counts, and that it shrinks what fails."""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import pytest

from engine.random_programs import program
from processes import captured
from soak import layouts
from soak.layouts import Batch, Layout
from soak.run import RESULTS, Result, Soak

BATCH = Batch(first=40, count=8, in_flight=2, times=2, repeat=4, threads=2)
LOCAL = Layout((2,), 2, "shared memory")


class Planted(Soak):
    """Jobs that fail where a program has a step of this kind."""

    op = "psum"

    def job(self, layout: Layout, batch: Batch) -> Result:
        wrong = []
        for seed in range(batch.first, batch.first + batch.count):
            if seed % 4 == 3:
                continue
            steps = program.generate(seed, 4).steps
            kept = [steps[i] for i in batch.keep] if batch.keep is not None else steps
            if any(step.op == self.op for step in kept):
                wrong.append(f"WRONG on process 0: step 1\nprogram {seed}: int8[]")
        said = "\n".join(wrong) or "process 0: 16 executions, 96 collectives, 0 wrong"
        return Result(bool(wrong), said)


def test_what_fails_is_shrunk_to_one_program_and_its_steps(capsys: pytest.CaptureFixture) -> None:
    soak = Planted(1, None)
    soak.one(LOCAL, BATCH)
    said = capsys.readouterr().out
    last = said.splitlines()[-1].split()
    options = dict(itertools.pairwise(last))
    seed, keep = int(options["--first"]), options["--keep"]
    assert options["--count"] == "1"
    assert program.generate(seed, 4).steps[int(keep)].op == "psum"
    assert soak.totals.failed == 1


def test_what_is_right_is_counted() -> None:
    soak = Planted(1, None)
    soak.op = "none"
    soak.one(LOCAL, BATCH)
    assert soak.document() == {
        "seed": 1,
        "batches": 1,
        "executions": 16,
        "collectives": 96,
        "failed": 0,
        "seconds": soak.totals.seconds,
        "over": {"shared memory": 96},
    }


def test_every_layout_and_option_is_drawn() -> None:
    transports = ("shared memory", "TLS", "plain", "UCX")
    rng = random.Random(1)
    drawn = [layouts.draw(rng, transports) for _ in range(400)]
    assert {layout.transport for layout in drawn} == {*transports}
    assert {sum(layout.processes) for layout in drawn} >= {1, 2, 3, 4, 5, 7, 8}
    assert {len(layout.processes) for layout in drawn} == {1, 2, 3, 4, 7}
    assert all(sum(layout.processes) * layout.devices <= 8 for layout in drawn)
    batches = [layouts.draw_batch(rng) for _ in range(100)]
    assert {batch.threads for batch in batches} == {1, 2}


@pytest.mark.full
def test_a_minute_of_it_on_this_machine(tmp_path: Path) -> None:
    words = [sys.executable, Path(__file__).parent / "run.py", "--here", "--minutes", "0.2"]
    seed = 990_000 + random.randrange(1000)
    done = captured([*words, "--seed", str(seed)], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    file = RESULTS / f"seed-{seed}.json"
    document = json.loads(file.read_text())
    file.unlink()
    assert document["collectives"] > 0
    assert document["failed"] == 0
