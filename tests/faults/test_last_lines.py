"""Mistakes of a new user: the last line of the run names the process, the line and the cause."""

from __future__ import annotations

import re
from typing import NamedTuple

from faults.harness import HEAD
from lanes import sample
from support import run_lockstep

START = f"""{HEAD}
def batch(n=8, dtype=np.float32):
    local = np.random.default_rng(0).normal(size=(n, 4)).astype(dtype)
    return jax.make_array_from_process_local_data(rows, local)

@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(w)

w = jnp.zeros(4)
"""
OPTIONS = ["--stall-warning", "3", "--collective-timeout", "6"]


class Mistake(NamedTuple):
    """A program after `START`; its process 1 has the fault."""

    program: str
    last: str
    over_gloo: str = ""
    """What the last line has there, if it is something else."""


LOOP = """
for i in range(10):
    {before}
    w = step(w, batch())
    {after}
    float(w[0])
"""


def loop(before: str = "", after: str = "") -> str:
    return LOOP.format(before=before, after=after)


ENDED = r"process 1 \(.*\) ended.* after 4 .*; process 0 wait"
MISTAKES = {
    "sys.exit(0)": Mistake(
        loop("if me == 1 and i == 4: sys.exit(0)  # HERE"),
        r"process 1 \(.*\) ended by sys\.exit\(\) at HERE .*process 0 wait.* in its 5th",
    ),
    "a loop that one process leaves": Mistake(loop("if me == 1 and i == 4: break"), ENDED),
    "a step that is skipped": Mistake(
        loop("if me == 1 and i == 4: continue"), ENDED.replace("4", "9")
    ),
    "a loop until a local time": Mistake(
        "end = time.time() + 1 + me\n"
        "while time.time() < end:\n    w = step(w, batch())\n    float(w[0])",
        r"process 0 \(.*\) ended.* after \d+ .*; process 1 wait.*program\.py:\d+",
    ),
    "KeyError": Mistake(
        loop(after="if i == 4: {0: 'lr'}[me]  # HERE"), r"process 1 of 2 .*KeyError: 1 .*HERE"
    ),
    "a file that is missing": Mistake(
        "if me == 1: np.load('shard-1.npy')  # HERE\nfloat(step(w, batch())[0])",
        r"process 1 of 2 .*No such file or directory: 'shard-1\.npy' .*HERE",
    ),
    "a package that is missing": Mistake(
        "if me == 1: import tensorflow_of_old  # HERE\nfloat(step(w, batch())[0])",
        r"process 1 of 2 .*No module named 'tensorflow_of_old' .*HERE",
    ),
    "kill -9": Mistake(
        loop(after="if me == 1 and i == 3: os.kill(os.getpid(), signal.SIGKILL)"),
        r"process 1 of 2 .*SIGKILL \(signal 9\).* after \d .*program\.py:\d+.*Likely a kill -9",
    ),
    "a segmentation fault": Mistake(
        loop(after="if me == 1 and i == 3: __import__('ctypes').string_at(0)  # HERE"),
        r"process 1 of 2 .*SIGSEGV \(signal 11\), HERE",
    ),
    "a process that sleeps": Mistake(
        loop(after="if me == 1 and i == 3: time.sleep(1000)  # HERE"),
        r": process 1 \(.*\) has not arrived yet; process 0 waits in its 5th.*program\.py:\d+ in "
        r".*; process 1 was stopped at \S*HERE; ",
        r"process 1 \(.*\) has not arrived yet; process 0 waits in its 5th.*process 1 .*HERE",
    ),
    "a last batch": Mistake(
        loop("").replace("batch()", "batch(6 if me == 1 and i == 4 else 8)"),
        r"program\.py:\d+ in step, given x: f32\[4,4\]; process 1 .* given x: f32\[3,4\]",
        r"process 1 runs another program .* in step .* x is f32\[12,4\] on process 1, f32\[16,4\]",
    ),
    "a loss that process 0 alone computes": Mistake(
        loop(after="if me == 0 and i == 4: print(jnp.mean(batch() @ w))  # HERE"),
        r"only process 0 .* called .*HERE.*, where process 1 .* called .*step",
    ),
    "a constant": Mistake(
        "rate = 0.1 * (me + 1)\nprint(jax.jit(lambda x: (x * rate).sum())(batch()))  # HERE",
        r"process 1 runs another program than process 0: .*HERE.* a constant is 0\.2.*, 0\.1",
    ),
    "a static argument": Mistake(
        "power = jax.jit(lambda x, n: sum([x] * n).sum(), static_argnums=1)\n"
        "print(power(batch(), 3 if me == 0 else 2))  # HERE",
        r"process 1 runs another program than process 0: .*HERE.* one more operation: add on",
    ),
    "another order": Mistake(
        "calls = [jax.jit(jnp.max), jax.jit(jnp.sum)]\n"
        "for call in calls[:: 1 - 2 * me]: print(call(batch()))  # HERE",
        r"process 0 .*\(max\).*HERE.*; process 1 .*\(sum\).*HERE",
        r"process 0 .* called max .*; process 1 .* called sum ",
    ),
    "other types": Mistake(
        "if me == 1: jax.config.update('jax_enable_x64', True)\n"
        "print(float(jnp.sum(batch(dtype=np.float64))))  # HERE",
        r"HERE.*, given .*f32\[\d,4\]; process 1 .*HERE.*, given .*f64\[\d,4\]",
    ),
    "names of a barrier": Mistake(
        "import lockstep\nlockstep.barrier('epoch' if me == 0 else 'end')  # HERE",
        r"process 0 .* waits in barrier\('epoch'\) at HERE.*; process 1 .*barrier\('end'\) at HERE",
        r"MissingProcessError: barrier\('(epoch|end)'\).*process [01] .*HERE",
    ),
    "threads": Mistake(
        "calls, x = [jax.jit(jnp.max), jax.jit(jnp.sum)], batch()\n"
        "def work(call):\n    for _ in range(50): float(call(x))  # HERE\n"
        "threads = [threading.Thread(target=work, args=[call]) for call in calls[:: 1 - 2 * me]]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()",
        r"process 0 .*program\.py:\d+.*; process 1 .*program\.py:\d+.*these must be the same",
        r"process 1 .*program\.py:\d+",
    ),
}


@sample(
    ("name", "collectives"),
    [(name, kind) for name in MISTAKES for kind in ("lockstep", "gloo")],
    *(0, 18),  # over the engine: sys.exit(), and a process that sleeps
)
def test_the_last_line_says_who_where_and_why(name: str, collectives: str) -> None:
    mistake = MISTAKES[name]
    program = START + mistake.program
    lines = program.splitlines()
    here = [f"program.py:{n}" for n, line in enumerate(lines, 1) if "# HERE" in line]
    words = mistake.last if collectives == "lockstep" else mistake.over_gloo or mistake.last
    options = ["--collectives", collectives, *OPTIONS]
    devices = 2 if collectives == "lockstep" else 1
    result = run_lockstep(options, program, d=devices, expect_status=None, forked=True)
    last = result.said_by_launcher.splitlines()[-1]
    assert result.status != 0
    assert re.search(words.replace("HERE", re.escape("".join(here))), last), result
