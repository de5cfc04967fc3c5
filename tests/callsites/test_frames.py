"""The lines of the user's program: found for every execution under --strict, and never guessed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from lockstep._run_files import CALLERS
from lockstep.callsites import frames
from lockstep.flight_recorder.run_records import Caller, read_callers
from processes import python

PROGRAM = """
from lockstep import _jax_compat
from lockstep.callsites import frames
import jax, jax.numpy as jnp, numpy as np

sites = []
def around(execute):
    def look():
        results = execute()
        assert all(result.is_ready() for result in results)
        sites.extend(frames._executing.values())
        return results
    return frames._note(look)
_jax_compat.around_executions(around)

double = jax.jit(lambda x: 2 * x)
x = jnp.ones(8)
compiled = double.lower(x).compile()
donating = jax.jit(lambda x: x + 1, donate_argnums=0)
mapped = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
rows = jnp.ones((jax.local_device_count(), 3))

def count(call):
    del sites[:]
    for _ in range(3): result = call()
    return len(sites), len(set(sites)), frames.UNKNOWN in sites

for call in (lambda: double(x), lambda: compiled(x), lambda: mapped(rows)):
    assert count(call) == (3, 1, False), (call, sites)
y = jnp.ones(8)
del sites[:]
for _ in range(3): y = donating(y)
assert len(sites) == 3
del sites[:]
double(x)
double(x)
assert len(set(sites)) == 2, sites
assert not frames._executing
print("good", np.asarray(y))
"""


def test_every_execution_is_seen_with_its_line_and_waited_for() -> None:
    ended = python(PROGRAM, timeout=120)
    assert ended.status == 0, ended
    assert ended.stdout.startswith("good [4. 4."), ended


@pytest.mark.parametrize(
    ("executing", "site"),
    [
        ({1: 77}, 77),
        ({1: 77, 2: 77}, 77),
        ({1: 77, 2: 78}, frames.UNKNOWN),
        ({}, frames.UNKNOWN),
    ],
)
def test_a_thread_without_lines_takes_those_of_the_only_execution(
    executing: dict[int, int], site: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_executing", executing)
    monkeypatch.setattr(frames, "_site", lambda frame: frames.UNKNOWN)
    assert frames.of_this_collective() == site


class Chain:
    def __init__(self) -> None:
        self.sites: list[int] = []

    def again(self) -> Chain:
        self.sites.append(frames.of_this_collective())
        return self


def test_a_thread_with_lines_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def call() -> int:
        return frames.of_this_collective()

    monkeypatch.setattr(frames, "_executing", {1: 77})
    assert frames.UNKNOWN != call() != 77
    assert len({call() for _ in range(3)}) == 1
    beside, it = call(), call()
    below = call()
    assert len({beside, it, below}) == 3
    chained = Chain().again().again()
    assert len(set(chained.sites)) == 2


def test_the_lines_behind_a_site_are_written_for_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(frames, "_known", {})
    monkeypatch.setattr(frames, "_path", "")
    early = frames.of_this_collective()
    frames.keep_in(str(tmp_path / CALLERS))
    late = frames.of_this_collective()
    read = read_callers(tmp_path / CALLERS)
    assert list(read) == [early, late]
    assert read == frames.known()
    innermost = [read[site][0] for site in (early, late)]
    assert [Path(caller.file).name for caller in innermost] == ["test_frames.py"] * 2
    assert innermost[1].line == innermost[0].line + 2
    assert [caller.columns for caller in innermost] == ["13-39", "12-38"]
    assert innermost[0].function == "test_the_lines_behind_a_site_are_written_for_the_others"


def through(*files: str) -> Callable[[], Caller | None]:
    """Looks for the line below a function in each of the files, which call each other."""
    call: Callable[[], Caller | None] = frames.innermost
    for file in reversed(files):
        names: dict[str, Any] = {}
        exec(compile("def call(what):\n    return what()", file, "exec"), names)
        call = functools.partial(names["call"], call)
    return call


JAX = str(Path(jax.__file__).parent / "_src" / "pjit.py")
PYTHON = contextlib.__file__
LIBRARY = "/usr/lib/python3/dist-packages/checkpoints/save.py"
BELOW_PYTHON = str(Path(PYTHON).parent / "site-packages" / "save.py")
INSTALLED_PROGRAM = f"{sysconfig.get_path('scripts')}/train"


@pytest.mark.parametrize("files", [(), (JAX,), (PYTHON, JAX), (LIBRARY, JAX), (JAX, LIBRARY, JAX)])
def test_the_innermost_line_is_the_users(files: tuple[str, ...]) -> None:
    found = through(*files)()
    assert found is not None
    assert (found.file, found.line) == (__file__, sys._getframe().f_lineno - 2)
    assert found.function == "test_the_innermost_line_is_the_users"


@pytest.mark.parametrize(
    ("files", "file"),
    [
        ((JAX,), None),
        ((LIBRARY, JAX), LIBRARY),
        ((BELOW_PYTHON, JAX), BELOW_PYTHON),
        ((INSTALLED_PROGRAM, LIBRARY, JAX), LIBRARY),
        (("/home/u/train.py", LIBRARY, JAX), "/home/u/train.py"),
        (("/home/u/train.py", "/home/u/model.py", JAX), "/home/u/model.py"),
    ],
)
def test_a_thread_has_only_its_own_lines(files: tuple[str, ...], file: str | None) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = pool.submit(through(*files)).result()
    assert found == (None if file is None else Caller(file, 2, "call"))


def test_a_program_that_is_made_ahead_of_time_is_called_by_no_thread_yet() -> None:
    found: list[str] = []
    feed = threading.Thread(
        target=lambda: found.append(frames.dispatching_thread()), name="prefetch"
    )
    feed.start()
    feed.join(60)
    assert found == ["prefetch"]
    of_jax = jax.stages.Lowered.compile.__code__
    calls: dict[str, Any] = {}
    source = f"def {of_jax.co_name}(look):\n    return look()\n"
    exec(compile(source, of_jax.co_filename, "exec"), calls)
    assert calls[of_jax.co_name](frames.dispatching_thread) == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("step(x)", ["step"]),
        ("self.model.step(x, key=a[0](1))", ["self.model.step"]),
        ("step(\n    x,  # (not here\n    ')',\n)", ["step"]),
        ('step(f"{x(1)}")', ["step"]),
        ("steps[0](x)", ["steps"]),
        ("self.steps[name](x)", ["self.steps", "name"]),
        ("(step)(x)", ["step"]),
        ("(save if last else step)(x)", ["save", "last", "step"]),
        ("(save if last else step)(x).block_until_ready()", []),
        ("(jit(step))(x)", []),
        ("jax.jit(step, out_shardings=P())(x)", ["step"]),
        ("jax.jit(self.model.step)(x, y)", ["self.model.step"]),
        ("pjit(step)(f(x))", ["step"]),
        ("jax.jit(lambda x: x)(x)", []),
        ("jax.jit(partial(step, 1))(x)", []),
        ("jax.jit(steps[0])(x)", []),
        ("jax.jit(*step)(x)", []),
        ("jax.jit()(x)", []),
        ("jax.jit(step).lower(x)", []),
        ("unjit(step)(x)", []),
        ("step(x).block_until_ready()", []),
        ("step(x)(y)", []),
        ("step(x) + step(y)", []),
        ("-step(x)", []),
        ("step", []),
        ("step(x", []),
        ("step(x))", []),
        ("  step\n  y(", []),
        ("", []),
    ],
)
def test_the_names_in_what_is_called(text: str, names: list[str]) -> None:
    assert [".".join(each) for each in frames._names_of_call(text)] == names


def test_what_may_be_called_is_among_the_values_of_a_container() -> None:
    def step(own: list[Any]) -> None:
        own += frames.called(sys._getframe(1))

    steps: dict[str, Any] = {"train": functools.partial(step)}
    found: list[Any] = []
    steps["train"](found)
    assert found == [step]


def test_no_tree_of_python_is_made() -> None:
    """On a thread of ours that could make the program's own `ast.parse` fail."""
    assert "ast" not in vars(frames)


def test_the_call_that_raised_is_known_in_a_frame_that_goes_on() -> None:
    def step(_: int) -> None:
        raise ValueError

    with pytest.raises(ValueError) as raised:
        step(1)
    trace = raised.tb
    assert frames.called(trace.tb_frame) != [step]
    assert frames.called(trace.tb_frame, trace.tb_lasti) == [step]
