"""The program cannot tell that Python did not start it: ``__main__``, pickling, multiprocessing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.processes.user_program import place_in_program
from processes import captured
from support import run_lockstep


def test_main_is_what_python_makes_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "print(sorted(globals()), __name__, __file__, __spec__, __package__, __doc__)\n"
        "print(__loader__.name, sys.argv[1:], sys.modules['__main__'].__dict__ is globals())\n"
        "print(sys.path[0], type(__builtins__), 'jax' in sys.modules)\n"
    )
    plain = captured([sys.executable, program, "a"])
    assert plain.returncode == 0, plain
    result = run_lockstep([], program, n=1, program_args=["a"])
    assert result.by_process[0] == plain.stdout.splitlines()


def test_files_beside_the_program_are_for_it_alone_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for name in ("json", "signal", "traceback", "faulthandler", "selectors"):
        (tmp_path / "real" / f"{name}.py").write_text("raise RuntimeError('not for Lockstep')")
    (tmp_path / "real" / "helper.py").write_text("name = 'helper'")
    (tmp_path / "real" / "program.py").write_text("import helper; print(helper.name)")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "program.py")
    assert run_lockstep([], tmp_path / "link.py", n=1).by_process[0] == ["helper"]


def test_pickling_and_multiprocessing() -> None:
    program = """
        import concurrent.futures, multiprocessing, pickle

        class Thing:
            def __init__(self, x): self.x = x

        def double(thing):
            return Thing(2 * thing.x)

        if __name__ == "__main__":
            print(pickle.loads(pickle.dumps(Thing(1))).x)
            for method in ("spawn", "fork", "forkserver"):
                context = multiprocessing.get_context(method)
                with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
                    print(method, pool.submit(double, Thing(2)).result().x)
    """
    result = run_lockstep([], program, n=1, timeout=90)
    assert result.by_process[0] == ["1", "spawn 4", "fork 4", "forkserver 4"]
    assert result.said_by_launcher == ""


def test_a_forked_child_that_fails_is_not_the_process() -> None:
    program = """
        import os
        pid = os.fork()
        if pid == 0:
            raise ValueError("only a child")
        print("child's status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    result = run_lockstep([], program, n=1, forked=True)
    assert result.by_process[0] == ["child's status 1"]
    assert "ValueError: only a child" in result.stderr


def test_a_failure_calls_the_programs_excepthook_and_exit_handlers() -> None:
    program = """
        import atexit, sys
        sys.excepthook = lambda kind, error, trace: print("hook:", error, trace.tb_lineno)
        atexit.register(sys.stdout.write, "handler ran, and open files are written")
        atexit.register(lambda: 1 / 0)
        raise ValueError("x")
    """
    result = run_lockstep([], program, n=1, expect_status=1, forked=True)
    said = ["hook: x 6", "handler ran, and open files are written"]
    assert result.by_process[0] == said
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.full
def test_exit_handlers_and_threads_that_do_not_end_hold_nothing_up() -> None:
    program = """
        import atexit, threading, time
        atexit.register(time.sleep, 1000)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        raise SystemExit(5)
    """
    result = run_lockstep([], program, n=1, timeout=30, expect_status=5)
    assert "failed first: sys.exit(5) (exit code 5)" in result.said_by_launcher


def test_lines_are_not_lost_when_native_code_crashes() -> None:
    program = """
        import ctypes
        print("before")
        ctypes.string_at(0)
    """
    result = run_lockstep([], program, n=1, expect_status=139, forked=True)
    assert result.by_process[0] == ["before"]
    first, *rest = result.said_by_launcher.splitlines()
    assert any("Fatal Python error: Segmentation fault" in line for line in rest)
    for line in (first, rest[-1]):
        assert "killed by SIGSEGV (signal 11), program.py:4. Native code accessed" in line, result


def test_the_place_where_a_program_was_stopped_is_in_no_library(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import json\ndef use(x):\n    return json.loads(x)\n")
    scope: dict[str, Any] = {"__name__": "mine"}
    file = str(tmp_path / "mine.py")
    exec(compile((tmp_path / "mine.py").read_text(), file, "exec"), scope)
    with pytest.raises(ValueError, match="Expecting value") as caught:
        scope["use"]("no json")
    assert place_in_program(caught.tb) == f" at {file}:3"
    assert place_in_program(None) == ""
