"""The engine's own tests: build ``lockstep_tests`` and run it, one group an item.

The build stays in ``build/native-tests*``, so that only what changed is compiled again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NATIVE = REPOSITORY / "native"
GROUPS = sorted(
    path.stem for path in (NATIVE / "tests").glob("*.cc") if "\nTEST(" in path.read_text()
)

MOSTLY_WAIT = ("failures", "networks")
"""Groups that wait for deadlines for most of their time: they run beside the others."""

BUILD_SECONDS = 900
GROUP_SECONDS = {"": 120, "thread": 900, "address": 900}
"""How long one group may run, by sanitizer: a bound for hangs, not a claim about speed."""

SANITIZERS = {
    "thread": ("-fsanitize=thread", "libtsan2"),
    "address": ("-fsanitize=address,undefined", "libasan8 and libubsan1"),
}
"""The compiler's flag, and the Debian package that its run-time is in (a part of gcc there)."""

ENVIRONMENT = {
    "": {},
    "thread": {"TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"},
    "address": {
        "ASAN_OPTIONS": "detect_leaks=1 detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
}


def _tool(name: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    assert found, f"{name} is missing; `make test` installs it into .venv"
    return found


def _run(command: list[str], seconds: float, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=seconds,
        env=os.environ | more,
    )


def _check_compiler(sanitizer: str, folder: Path) -> None:
    flag, package = SANITIZERS[sanitizer]
    source = folder / "empty.cc"
    source.write_text("int main() {}\n")
    compiler = os.environ.get("CXX", "c++")
    done = _run([compiler, flag, str(source), "-o", str(folder / "empty")], 60)
    assert done.returncode == 0, (
        f"{compiler} {flag} does not link: install the sanitizer's run-time (Debian and Ubuntu: "
        f"{package}, which comes with g++; clang: libclang-rt-dev).\n{done.stdout}"
    )


def _build(sanitizer: str) -> Path:
    build = REPOSITORY / "build" / ("native-tests" + (f"-{sanitizer}" if sanitizer else ""))
    configure = [
        *[_tool("cmake"), "-S", str(NATIVE), "-B", str(build), "-G", "Ninja"],
        *["-DLOCKSTEP_BUILD_TESTS=ON", f"-DLOCKSTEP_SANITIZE={sanitizer}"],
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
    ]
    for command in (
        configure,
        [_tool("cmake"), "--build", str(build), "--target", "lockstep_tests"],
    ):
        done = _run(command, BUILD_SECONDS)
        assert done.returncode == 0, done.stdout
    return build / "tests" / "lockstep_tests"


@pytest.fixture(scope="module")
def program() -> Path:
    return _build("")


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def sanitized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    _check_compiler(request.param, tmp_path_factory.mktemp("compiler"))
    return request.param, _build(request.param)


def _run_group(program: Path, group: str, sanitizer: str) -> subprocess.CompletedProcess[str]:
    return _run([str(program), group], GROUP_SECONDS[sanitizer], **ENVIRONMENT[sanitizer])


def _check(done: subprocess.CompletedProcess[str]) -> None:
    summary = done.stdout.splitlines()[-1] if done.stdout else ""
    assert done.returncode == 0, done.stdout
    assert summary.endswith(" tests, 0 failed"), done.stdout
    assert "Sanitizer" not in done.stdout, done.stdout


def test_the_program_has_the_groups_of_the_sources(program: Path) -> None:
    assert _run([str(program), "--list"], 10).stdout.split() == GROUPS


@pytest.fixture(scope="module")
def started(
    program: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    chosen = {item.name for item in request.session.items}
    groups = [group for group in MOSTLY_WAIT if f"test_native[{group}]" in chosen]
    with ThreadPoolExecutor(len(MOSTLY_WAIT)) as pool:
        yield {group: pool.submit(_run_group, program, group, "") for group in groups}


@pytest.mark.parametrize("group", sorted(GROUPS, key=MOSTLY_WAIT.__contains__))
def test_native(
    program: Path, started: dict[str, Future[subprocess.CompletedProcess[str]]], group: str
) -> None:
    _check(started[group].result() if group in started else _run_group(program, group, ""))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_native_sanitized(sanitized: tuple[str, Path], group: str) -> None:
    sanitizer, program = sanitized
    _check(_run_group(program, group, sanitizer))
