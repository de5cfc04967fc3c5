"""Every program in examples/ runs under ``lockstep run -n 2 -d 4`` and says what its page claims.

The programs assert their own numbers; these tests check that they end well and that each of the two
processes printed the lines a reader is told to look for.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import sys

import pytest

from lanes import sample
from processes import captured
from support import start_lockstep

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
WITH_ARGUMENTS = {"train_digits.py", "checkpoint_restart.py", "flax_digits.py"}
"""Examples with tests of their own."""
IN_MAKE_TEST = ("process_local_data.py", "psum_all_devices.py")
"""They and `checkpoint_restart.py` run with every change, the others in ``make full``."""
PROCESSES = 2
TIMEOUT_SECONDS = 150

# File -> lines that every process prints. A line is given by its telling part.
LINES = {
    "devices.py": [
        "local devices: 4 of 8",
        "global shape (16,), shards held here:",
        "np.asarray refuses: Fetching value for `jax.Array` that spans non-addressable",
    ],
    "psum_all_devices.py": [
        "pmap:      [36.0, 36.0, 36.0, 36.0]",
        "shard_map: [36.0, 36.0, 36.0, 36.0]",
        "1 + 2 + ... + 8 = 36 on every local device, both ways",
    ],
    "sharding_automatic.py": [
        "inserted by the compiler: all-reduce",
        "every local shard equals NumPy's result",
    ],
    "sharding_explicit.py": [
        "split by rows: float32[4@X,2]",
        "x.T: float32[2,4@X]",
        "x.T @ x is refused: Contracting dimensions are sharded",
    ],
    "sharding_manual.py": [
        "global shape (16,), shard shape (2,)",
        "all-gather, then sum:  [120.0, 120.0, 120.0, 120.0]",
    ],
    "layer_three_ways.py": [
        "explicit: float32[8@X,32], float32[32,16@Y], float32[16@Y] -> float32[8@X,16@Y]",
        "all three ways give equal results",
    ],
    "host_replicated.py": [
        "(None, ('process', 'device'))",
        "(None, 'device')",
        "this process holds every column",
    ],
    "pmap_own_part.py": [
        "got shares of 36:",
        "leading size 8:",
        "leading size 5:",
        "leading size 3:",
        "only 4, the number of local devices, is accepted",
    ],
    "process_local_data.py": [
        "global array: (16, 3), 4 shards of it here",
        "mean over the records of all processes: [7.5, 7.5, 7.5]",
    ],
    "last_batch.py": [
        "last='pad': 6 steps on every process, sum",
        "last='drop': 3 steps on every process, sum",
        "last='error' raises on every process: lockstep.data.batches: ",
    ],
    "padding.py": [
        "mean loss by NumPy            7.0417",
        "sums and counts with the mask 7.0417",
    ],
    "files_per_process.py": [
        "45 rows of 6 files in batches of 16, largest error 0.0",
        "45 real: (21, 24)",
    ],
    "checkpoint_restart.py": ["step 19: loss"],
    "flax_digits.py": ["going on from the checkpoint of step 19", "held-out accuracy 0."],
    "gaussian_process.py": [
        "kernel matrix 512 x 512: 64 rows on each of 8 devices",
        "the fitted process predicts held-out digits",
    ],
    "least_squares_fit.py": [
        "matrix 1536 x 400: 192 rows on each of 8 devices",
        "NumPy's weights on one process: True",
        "held-out digits that the fit recognizes: 9",
    ],
    "pca_digits.py": [
        "1797 images and 3 rows of zeros: 225 rows on each device",
        "components that hold 90%: 21 of 64",
        "NumPy's singular values and components: True",
    ],
    "host_replicated_solve.py": [
        "host-replicated: 100% of the matrix on this process",
        "distributed: 50% of the matrix on this process",
        "both ways give the same solution",
    ],
    "inspect_step.py": [
        "dimension 0: 128 in 2 blocks along data",
    ],
    "train_digits.py": ["718 training images, 4 of 8 devices"],
}
EXAMPLES_ALONE = sorted(set(LINES) - WITH_ARGUMENTS)


def run(example: str, *arguments: str, collectives: str = "lockstep") -> str:
    """The output of all processes of one run; fails with it when the run does."""
    command = [sys.executable, "-m", "lockstep", "run", "-n", str(PROCESSES), "-d", "4"]
    command += ["--collectives", collectives, str(EXAMPLES / example), *arguments]
    done = captured(command, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LINES)


@sample("example", EXAMPLES_ALONE, *map(EXAMPLES_ALONE.index, IN_MAKE_TEST))
def test_example_prints_what_it_shows(example: str) -> None:
    output = run(example)
    for line in LINES[example]:
        assert output.count(line) == PROCESSES, f"{line!r} not printed by every process:\n{output}"


@pytest.mark.full
def test_the_digits_are_drawn(tmp_path: pathlib.Path) -> None:
    output = run("pca_digits.py", "--plot", str(tmp_path / "pca.png"))
    assert output.count("drawn: ") == 1, output
    assert (tmp_path / "pca.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_each_process_holds_its_own_columns_then_all_of_them() -> None:
    output = run("host_replicated.py")
    before = {f"columns {c}:{c + 1} =" for c in range(8)}
    after = {f"columns {c}:{c + 2} =" for c in range(0, 8, 2)}
    assert all(output.count(line) == 1 for line in before), output
    assert all(output.count(line) == PROCESSES for line in after), output


@pytest.mark.full
def test_a_training_that_is_killed_ends_with_the_numbers_of_an_undisturbed_one(
    tmp_path: pathlib.Path,
) -> None:
    example = EXAMPLES / "checkpoint_restart.py"
    arguments = ["--steps", "20", "--folder"]
    undisturbed = run(example.name, *arguments, str(tmp_path / "undisturbed"))
    options = ["-n", str(PROCESSES), "-d", "4", "--max-restarts", "1"]
    with start_lockstep(options, example, [*arguments, str(tmp_path / "killed")]) as job:
        assert job.process.stdout is not None
        pid, said = None, ""
        # The loss of step 8 is printed: the process is in step 9, of which no checkpoint is made.
        while "[1] step 8:" not in said:
            line = job.process.stdout.readline().decode()
            assert line, f"the job ended early:\n{said}"
            said += line
            if found := re.match(r"\[1\] process 1 has pid (\d+)", line):
                pid = int(found[1])
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        result = job.finish(TIMEOUT_SECONDS)
    assert result.status == 0, result
    assert "process 1 of 2 failed first: killed by SIGKILL" in result.said_by_launcher
    assert "  continued from a checkpoint: attempt 1 from step 5\n" in result.stderr
    weights = set(re.findall(r"weights: \w+", undisturbed))
    for process in range(PROCESSES):
        lines = result.by_process[process]
        assert "going on from the checkpoint of step 5" in lines, result
        assert any(line.startswith(LINES[example.name][0]) for line in lines), result
        assert {lines[-1]} == weights, (result, undisturbed)


@pytest.mark.full
def test_flax_goes_on_from_the_last_checkpoint(tmp_path: pathlib.Path) -> None:
    example = EXAMPLES / "flax_digits.py"
    options = ["-n", str(PROCESSES), "-d", "2", "--max-restarts", "1"]
    arguments = ["--folder", str(tmp_path), "--epochs", "8", "--kill-at", "25"]
    with start_lockstep(options, example, arguments) as job:
        result = job.finish(TIMEOUT_SECONDS)
    assert result.status == 0, result
    assert "process 1 of 2 failed first: killed by SIGKILL" in result.said_by_launcher
    for line in LINES[example.name]:
        assert result.stdout.count(line) == PROCESSES, result


@pytest.mark.full
def test_digits_train_alike_over_both_collectives(tmp_path: pathlib.Path) -> None:
    numbers = {}
    for collectives in ("lockstep", "gloo"):
        file = tmp_path / f"{collectives}.json"
        output = run(
            "train_digits.py", "--steps", "30", "--json", str(file), collectives=collectives
        )
        numbers[collectives] = json.loads(file.read_text())
        for line in LINES["train_digits.py"]:
            assert output.count(line) == PROCESSES, output
        assert output.count("held-out accuracy") == 1, output

    ours, theirs = numbers["lockstep"], numbers["gloo"]
    assert len(ours["losses"]) == 30
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3, abs=1e-4)
    assert ours["losses"][-1] < 0.8 < ours["losses"][0]
    assert ours["accuracy"] > 0.85
