"""``--preload``: forks of one interpreter of a host are as processes with their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lanes import full
from launch.test_this_host_by_agent import ssh as two_agents
from own_address import networked
from support import run_lockstep, start_lockstep, wait_until

COUNTED = """
import os, pathlib
with open(pathlib.Path(__file__).with_suffix(".imports"), "a") as file:
    print(os.getpid(), file=file)
"""
"""A module that notes where it was imported."""
START = """
import os, pathlib, signal, sys, time
import counted
me, attempt = int(os.environ["LOCKSTEP_PROCESS_ID"]), int(os.environ["LOCKSTEP_ATTEMPT"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which the processes of a job import modules."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return tmp_path


@pytest.fixture
def imports(folder: Path) -> Path:
    """The file with the pids of the processes that have imported `counted`."""
    (folder / "counted.py").write_text(COUNTED)
    return folder / "counted.imports"


@pytest.mark.parametrize("where", [[], full(["--hosts", "localhost:2"])])
def test_all_processes_and_attempts_share_one_import(imports: Path, where: list[str]) -> None:
    program = START + "print(attempt, sys.argv[1:], __name__)\nsys.exit(me == 1 and attempt == 0)"
    options = [*where, "--preload", "counted", "--max-restarts", "1"]
    result = run_lockstep(options, program, program_args=["--lr", "1"], forked=True)
    assert len(imports.read_text().split()) == 1
    for process in (0, 1):
        words = [f"{attempt} ['--lr', '1'] __main__" for attempt in (0, 1)]
        assert result.by_process[process] == words


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("sys.exit(7)", 7, "process 1 of 2 failed first: sys.exit(7)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "failed first: killed by SIGKILL"),
        full("1 / 0", 1, "failed first: ZeroDivisionError: division by zero"),
    ],
)
def test_it_ends_as_other_processes_do(imports: Path, end: str, status: int, words: str) -> None:
    program = START + f"if me == 1: {end}\ntime.sleep(100)"
    result = run_lockstep(["--preload", "counted"], program, expect_status=status, forked=True)
    assert words in result.said_by_launcher
    assert "counted" not in result.stderr  # no frame of ours, none of the import


def test_standard_input_cores_and_descriptors(imports: Path) -> None:
    program = START + (
        "print(sys.stdin.read(), len(os.sched_getaffinity(0)), os.getsid(0) == os.getpid())\n"
        "print(sorted(os.listdir('/proc/self/fd'), key=int)[:4], file=sys.stderr)"
    )
    options = ["--preload", "counted", "--bind", "cores"]
    result = run_lockstep(options, program, n=min(2, len(os.sched_getaffinity(0))), stdin=b"text")
    assert result.by_process[0][0].split() == ["text", "1", "True"]
    without = run_lockstep(["--bind", "cores"], program, n=1)
    assert result.stderr_by_process[0] == without.stderr_by_process[0]


def test_kill_9_of_the_launcher_leaves_nothing(imports: Path) -> None:
    program = START + "pathlib.Path(os.environ['TMPDIR'], f'ready_{me}').touch(); time.sleep(100)"
    with start_lockstep(["-n", "2", "--preload", "counted"], program, forked=True) as run:
        run.wait_files("ready_*", 2)
        run.process.kill()
        run.finish(30)


def test_what_an_import_changes_is_seen_by_all(
    imports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HELD", "DROPPED"):
        monkeypatch.setenv(name, "by the user")
    module = """if True:
        import os, sys
        os.environ["HELD"] = "by the module"
        del os.environ["DROPPED"]
        os.environ["LOCKSTEP_ATTEMPT"] = "9"  # but for what is a process's own
        sys.path.append("/added")
        sys.excepthook = lambda *error: print("hooked")
    """
    imports.with_suffix(".py").write_text(module)
    program = START + (
        "print(os.environ['HELD'], 'DROPPED' in os.environ, attempt, sys.path[-1])\n"
        "sys.excepthook(None, None, None)\n"
    )
    result = run_lockstep(["--preload", "counted"], program)
    said = ["by the module False 0 /added", "hooked"]
    assert result.by_process == {0: said, 1: said}


@pytest.mark.full
def test_what_an_import_opens_is_no_descriptor_of_lockstep(imports: Path) -> None:
    text = imports.with_suffix(".py").read_text()
    opens = "held = [open('/dev/null') for _ in range(20)]\n"
    imports.with_suffix(".py").write_text(text + opens)
    program = (
        START
        + "import stat\nprint({stat.S_ISCHR(os.fstat(f.fileno()).st_mode) for f in counted.held})"
    )
    options = ["--preload", "counted", "--collectives", "mpi"]
    result = run_lockstep(options, program)
    assert [result.by_process[i] for i in (0, 1)] == [["{True}"]] * 2


@pytest.mark.full
def test_a_fork_that_does_not_end_is_given_up(imports: Path) -> None:
    hangs = "os.register_at_fork(after_in_child=lambda: time.sleep(60) if attempt_of() else None)\n"
    imports.with_suffix(".py").write_text(
        "import os, pathlib, time\nready = pathlib.Path(__file__).with_suffix('.first')\n"
        "def attempt_of():\n    return ready.exists()\n" + hangs
    )
    program = START + "pathlib.Path(counted.__file__).with_suffix('.first').touch(); sys.exit(1)"
    options = ["--preload", "counted", "--max-restarts", "1"]
    result = run_lockstep(options, program, n=1, expect_status=1)
    assert "--preload: the interpreter has not forked within 5 s" in result.said_by_launcher


def test_an_interpreter_that_was_killed_is_started_again(imports: Path) -> None:
    program = START + (
        "if attempt == 0 and me == 0:\n"
        "    os.kill(int(pathlib.Path(counted.__file__).with_suffix('.imports').read_text()), 9)\n"
        "    sys.exit(1)\n"
    )
    run_lockstep(["--preload", "counted", "--max-restarts", "1"], program, forked=True)
    assert len(set(imports.read_text().split())) == 2


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (None, "--preload: importing counted has failed: ModuleNotFoundError: No module named"),
        ("raise RuntimeError('no licence')", "has failed: RuntimeError: no licence"),
        full("import os; os.environ['LOCKSTEP_PROCESS_ID']", "KeyError: 'LOCKSTEP_PROCESS_ID'"),
        full("import os; os.chdir('/')", "importing counted has changed the directory"),
        full(
            "import jax.numpy as jnp; ONE = jnp.ones(1)",
            "importing counted has made JAX's devices (with an array, say), which a fork cannot",
        ),
        full(
            "import threading as t, time; t.Thread(target=time.sleep, args=(9,), daemon=1).start()",
            "importing counted has started 1 thread, which a fork would lack",
        ),
        full(
            "import os, signal; os.kill(os.getpid(), 9)",
            "--preload: the interpreter that imports the modules for all processes of this",
        ),
    ],
)
def test_what_cannot_be_preloaded_is_an_error(folder: Path, module: str | None, words: str) -> None:
    if module:
        (folder / "counted.py").write_text(module)
    options = ["--preload", "counted", "--max-restarts", "1"]
    result = run_lockstep(options, "print('runs')", expect_status=1, forked=True)
    assert "process 0 of 2 could not be started: " in result.said_by_launcher
    assert words in result.said_by_launcher
    assert result.stdout == ""


def test_imports_that_do_not_end_are_given_up_or_stopped(folder: Path) -> None:
    (folder / "counted.py").write_text(
        "import time, pathlib; pathlib.Path(__file__).with_suffix('.begun').touch(); time.sleep(99)"
    )
    options = ["--preload", "counted", "--start-timeout", "0.5"]
    result = run_lockstep(options, "print('runs')", expect_status=1, forked=True)
    assert "the imports have taken more than --start-timeout (0.5 s)" in result.said_by_launcher
    (folder / "counted.begun").unlink(missing_ok=True)
    with start_lockstep(["-n", "2", "--preload", "counted"], "print('runs')", forked=True) as run:
        wait_until((folder / "counted.begun").exists, "it imports", 30)
        run.process.send_signal(signal.SIGINT)
        assert run.finish(30).status == 130


JAX = """
import os
{before}
import jax, numpy as np
jax.distributed.initialize()
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
rows = np.ones(jax.local_device_count())
x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), rows)
print(float(jax.jit(lambda x: x.sum())(x)), x.dtype)
print(np.random.rand())
"""


@pytest.mark.parametrize("collectives", ["lockstep", full("gloo")])
def test_jax_works_and_numbers_are_drawn_as_without(collectives: str) -> None:
    options = ["--preload", "jax,numpy", "--collectives", collectives]
    before = "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'"
    result = run_lockstep(options, JAX.format(before=before), timeout=90)
    assert [lines[-2] for lines in result.by_process.values()] == ["6.0 float32"] * 2
    assert len({lines[-1] for lines in result.by_process.values()}) == 2


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", full("gloo")])
def test_a_fork_imports_nothing_that_every_process_needs(collectives: str) -> None:
    program = JAX.format(before="import sys; before = set(sys.modules)")
    needed = "'lockstep' in name or name.endswith('.mhlo')"
    program += f"print([name for name in sys.modules.keys() - before if {needed}])"
    options = ["--preload", "jax", "--collectives", collectives]
    result = run_lockstep(options, program, timeout=90, forked=False)
    assert [lines[-1] for lines in result.by_process.values()] == ["[]"] * 2


@pytest.mark.full
def test_a_variable_that_jax_has_read_already_is_an_error() -> None:
    before = "os.environ['JAX_NUM_CPU_DEVICES'] = '2'; os.environ['JAX_ENABLE_X64'] = '1'"
    options = ["--preload", "jax"]
    result = run_lockstep(options, JAX.format(before=before), timeout=90, expect_status=1)
    assert "the program has changed JAX_ENABLE_X64, but --preload has imported jax" in result.stderr
    before = "os.environ['JAX_NUM_CPU_DEVICES'] = '2'"
    result = run_lockstep(options, JAX.format(before=before), timeout=90)
    assert result.by_process[1][0] == "4.0 float32"


@networked
@pytest.mark.full
def test_each_of_two_hosts_has_an_interpreter_of_its_own(imports: Path) -> None:
    before = "import counted"
    options = ["--hosts", "localhost:2,user@second", "--ssh", two_agents(imports.parent)]
    options += ["--preload", "counted,jax", "--export", "PYTHONPATH"]
    result = run_lockstep(options, JAX.format(before=before), n=3, timeout=120)
    assert result.stdout.count("] 3.0 float32") + result.stdout.count("]    3.0 float32") == 3
    assert len(imports.read_text().split()) == 2
