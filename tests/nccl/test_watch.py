"""Jobs whose collectives NCCL would not end: real processes, with NCCL's events from `driver`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanes import full
from nccl.told_gpus import ROWS, TOLD_GPUS, line_of
from support import Result, assert_unsaid, run_lockstep

HEAD = f"""
{TOLD_GPUS}
import signal
from nccl import driver
communicator = driver.Process.of_this_one().communicator(5, ranks=count, rank=me)

def step(elements=8):
    return communicator.launch(b"AllReduce", elements).begin()

def wait():
    while True:
        time.sleep(0.1)

for _ in range(3):
    step().end()
"""
OPTIONS = ["--collectives", "gloo", "--stall-warning", "4", "--collective-timeout", "9"]


def run(program: str, n: int = 2, status: int = 1) -> Result:
    return run_lockstep(OPTIONS, HEAD + program, n=n, timeout=100, expect_status=status)


@pytest.mark.full
def test_processes_in_different_collectives_all_raise() -> None:
    result = run("step(8 + me)\nwait()")
    said = result.said_by_launcher
    assert "called all-reduce of 8 x f32; process 1" in said, result
    assert "as the 4th collective on 2 devices" in said
    assert "different shapes" in result.stderr


@pytest.mark.full
def test_a_job_that_hangs_continues_from_its_checkpoint(tmp_path: Path) -> None:
    """The program is one with a loop and a checkpoint, of which process 1 stands still once."""
    program = f"""
from pathlib import Path
from jax.experimental import multihost_utils
kept, hung = Path({str(tmp_path / "kept")!r}), Path({str(tmp_path / "hung")!r})
begun = int(kept.read_text()) if kept.exists() else 0
lockstep.continues_from(begun)
multihost_utils.process_allgather(jax.numpy.int32(begun))  # both have read it
for k in range(begun, 6):
    if k == 4 and me == 1 and not hung.exists():
        hung.touch()
        time.sleep(1000)
    launched = step()
    while k == 4 and not begun:
        time.sleep(0.1)
    launched.end()
    if me == 0:
        kept.write_text(str(k + 1))
print("steps", begun, "to", k)
"""
    options = [*OPTIONS, "--max-restarts", "1"]
    result = run_lockstep(options, HEAD + program, timeout=150)
    assert [lines[-1] for lines in result.by_process.values()] == ["steps 4 to 5"] * 2, result
    said = result.said_by_launcher
    assert "a collective over NCCL has waited" in said
    assert "process 1" in said.partition("a collective over NCCL has waited")[2]
    assert "continued from a checkpoint: attempt 1 from step 4" in said


@pytest.mark.full
def test_a_process_that_does_not_come_is_named_with_its_line_and_what_nccl_counts() -> None:
    result = run("""
from jax.experimental import multihost_utils
from nccl import ras_stand_in as ras
pids = multihost_utils.process_allgather(jax.numpy.int32(os.getpid())).ravel().tolist()
ranks = [ras.rank(n, pids[n], AllReduce=4 - n) for n in range(count)]
port = ras.RasPort(ras.sends(ras.answer((ranks, []))))
os.environ["NCCL_RAS_ADDR"] = "127.0.0.1:%d" % port.address[1]
if me == 1:
    time.sleep(1000)
step()
wait()
""")
    head, _, rest = result.said_by_launcher.partition("\n")
    assert "a collective over NCCL has waited" in head, result
    assert "has not arrived yet; process 0 waits in its 4th" in head
    assert "waiting for" in result.stderr
    assert "process 1 does meanwhile:" in result.stderr
    assert "process 1 lags: NCCL counts on 2 GPUs" in rest
    assert "3 all-reduces of process 1, 4 of process 0; process 1 is at program.py" in rest


@pytest.mark.full
@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (
            "sys.exit(0)",
            "ended by sys.exit() at program.py:{line} after 3 collectives; processes 0, 2 wait",
        ),
        full("os._exit(0)", "is gone: it has ended", id="hard"),
        full("os.kill(os.getpid(), signal.SIGSTOP)", "has not arrived yet", id="stopped"),
    ],
)
def test_a_process_that_is_gone_is_named(leave: str, words: str) -> None:
    program = f"if me == 1:\n    {leave}  # LEAVES\nstep()\nwait()"
    result = run(program, n=3)
    assert words.format(line=line_of(HEAD + program, "# LEAVES")) in result.said_by_launcher, result


def compiling(loop: str, before: str = "pass") -> str:
    """The program of a job that compiles: ``loop`` stands in the place of XLA's compiler for GPUs,
    which waits for the other processes. ``before`` is done first, outside of it."""
    source = f"import hashlib, time\nstarted = time.monotonic()\ndef work():\n    {loop}"
    return f"""
import jax._src.compiler
from lockstep.programs import compilations
{ROWS}
spec = {{"mesh": mesh, "in_specs": P("x"), "out_specs": P()}}
step = lambda v: jax.lax.psum(v * (2 + me), "x")
module = jax.jit(jax.shard_map(step, **spec)).lower(x).compiler_ir("stablehlo")
names = {{}}
exec(compile({source!r}, jax._src.compiler.__file__, "exec"), names)
{before}
options = jax._src.compiler.get_compile_options(1, 1)
compilations._note(module, jax.devices(), options, names["work"])
print("done")
"""


WAIT = "while True: time.sleep(100)"
# As XLA's compiler it works in native code, without Python's lock.
WORK = "while time.monotonic() < started + 14: hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 20)"


@pytest.mark.full
def test_processes_that_compile_different_programs_all_raise() -> None:
    result = run(compiling(WAIT))
    assert "runs another program than process" in result.said_by_launcher, result
    # jax 0.12 prints such a number without a point.
    assert re.search(
        r"a constant is 3(\.0)? on process 1, 2(\.0)? on process 0", result.said_by_launcher
    ), result


@pytest.mark.full
def test_one_that_waits_alone_in_the_compiler_ends_the_job_with_the_line_of_the_other() -> None:
    alone = compiling(WAIT, "time.sleep(100 * me)  # LATE")
    said = run(alone).said_by_launcher
    assert "a compilation has waited " in said
    assert " (--collective-timeout). process 0 compiles _lambda" in said
    line = line_of(HEAD + alone, "# LATE")
    assert f"process 1 is at program.py:{line}" in said


@pytest.mark.full
def test_a_process_that_compiles_for_longer_than_the_limit_is_healthy() -> None:
    result = run(compiling(WORK, "time.sleep(16 * me)"), status=0)
    assert result.by_process == {0: ["done"], 1: ["done"]}
    assert "process 0 has been compiling" in result.stderr


LAUNCH = '''
import hashlib, queue, threading

def total(v):
    return jax.lax.psum(v, "x")
step = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P()))
compiled = step.lower(x).compile()

class Executable:
    """XLA makes the communicator of its first launch on all processes together."""

    def __init__(self, real):
        self.real = real
        self.execute_sharded = queue.SimpleQueue().get  # native code, that waits

    def __getattr__(self, name):
        return getattr(self.real, name)

def work():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 20)

call = compiled._executable.unsafe_call
call.xla_executable = Executable(call.xla_executable)
'''
POLLS = "threading.Thread(target=work, daemon=True).start()"


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "late", "words"),
    [
        ("", "time.sleep(1000)  # LATE", "process 1 is at program.py:{line}"),
        # So XLA waits for a communicator that does not block.
        full(POLLS, "time.sleep(1000)  # LATE", "process 1 is at program.py:{line}", id="polls"),
        full(
            "",
            "os.kill(os.getpid(), signal.SIGSTOP)",
            "it is stopped, by a signal",
            id="stopped",
        ),
    ],
)
def test_a_first_launch_that_waits_for_a_process_ends_the_job(
    before: str, late: str, words: str
) -> None:
    program = f"{ROWS}{LAUNCH}{before}\nif me == 1:\n    {late}\ncall(x)\n"
    result = run(program)
    line = line_of(HEAD + program, "# LATE")
    head = result.said_by_launcher.partition("\n")[0]
    assert "a launch has waited " in head, result
    assert "(--collective-timeout). process 0 launches total (program.py" in head
    assert words.format(line=line) in head, head.split("together")[1]


@pytest.mark.full
def test_a_healthy_job_hears_nothing() -> None:
    result = run("step().end()\nprint('done')\ntime.sleep(2)", status=0)
    assert result.by_process == {0: ["done"], 1: ["done"]}
    assert_unsaid("over NCCL", result.stderr)


@pytest.mark.full
def test_a_user_s_own_plug_in_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "libmine.so")
    program = HEAD.partition("from nccl import driver")[0]
    result = run_lockstep(OPTIONS, f"{program}print(os.environ['NCCL_PROFILER_PLUGIN'])")
    assert result.by_process == {0: ["libmine.so"], 1: ["libmine.so"]}
