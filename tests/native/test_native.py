"""The engine's own tests: build ``lockstep_tests`` and run it, one group an item.

It links what the installation has compiled, in CMake's build directory of this environment
(``scripts/install.py``). A sanitizer and an emulator have ``build/native-tests-*`` of their own.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import ucx
from lanes import needs, sample
from script_modules import load

REPOSITORY = Path(__file__).parents[2]
NATIVE = REPOSITORY / "native"
script = load("wheel")
GROUPS = sorted(
    path.stem for path in (NATIVE / "tests").glob("*.cc") if "\nTEST(" in path.read_text()
)

MOSTLY_WAIT = (
    "failures",
    "endpoints",
    "lost_processes",
    "failure_detectors",
    "messages",
    "agents",
)
"""Groups that wait for deadlines for most of their time: they run beside the others."""

OVER_UCX = (
    *("collectives", "crossings", "failures", "lost_processes", "mailboxes", "mismatches"),
    *("recorders", "schedules", "ucx"),
)
"""Groups whose jobs on several hosts are tried with UCX as well."""
UCX_TCP = {"UCX_TLS": "tcp"}

BUILD_SECONDS = 900
GROUP_SECONDS = {"sample": 120, "": 300, "thread": 900, "address": 900, "aarch64": 900}
"""How long one group may run: a bound for hangs, not a claim about speed."""

SANITIZERS = {
    "thread": ("-fsanitize=thread", "libtsan2"),
    "address": ("-fsanitize=address,undefined", "libasan8 and libubsan1"),
}
"""The compiler's flag, and the Debian package that its run-time is in (a part of gcc there)."""

EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
EMULATED = "Debian and Ubuntu: dpkg --add-architecture arm64, qemu-user-static and libssl3:arm64"
"""What a machine of another architecture needs to run the tests for aarch64."""

NEED_PROCESS_VM_READV = ("cross_memory_reads", "origins")
"""Groups left out under qemu, which does not implement this system call."""

SEGMENT_UNDER_QEMU = "1"
"""GiB. qemu keeps 6 MB for each GiB that was ever mapped: 16 for each of many jobs is too much."""

NOT_EMULATED = {
    # qemu ignores RLIMIT_AS, which would bind itself.
    "segments.a_limit_on_address_space",
    # It has no process_vm_readv, by which the engine reads what may be no memory.
    "memberships.keys_in_a_frame",
    "memberships.no_key_is_read_where_the_width_of_an_id_is_not_known",
    "memberships.words_that_point_nowhere",
    "memberships.a_key_left_behind_by_an_earlier_call",
    "memberships.a_key_on_the_heap_to_which_a_frame_points",
    # Its /proc/self/maps has the guest's addresses, and /proc/self/mem those of the host.
    "progress_threads.the_key_is_wiped_from_memory",
}

REPEATS = re.compile(r"sample<|rounds\(|all_layouts|FUZZ")
SAMPLED = [
    group for group in GROUPS if REPEATS.search((NATIVE / "tests" / f"{group}.cc").read_text())
]
"""Groups of which `make test` has the first layouts and rounds, and `make full` all."""

SAMPLE = {
    "LOCKSTEP_TEST_SAMPLE": "1",
    "LOCKSTEP_FUZZ_FRAMES": "1e12",
    "LOCKSTEP_FUZZ_SECONDS": "2",
}
FUZZ_SECONDS = {"LOCKSTEP_FUZZ_FRAMES": "1e12", "LOCKSTEP_FUZZ_SECONDS": "30"}
FUZZ_FRAMES = {"LOCKSTEP_FUZZ_FRAMES": "1e6", "LOCKSTEP_FUZZ_SECONDS": "600"}
"""How many changed frames the group `frame_parsers` tries in `make full`, and in `make slow`."""

ENVIRONMENT = {
    "": FUZZ_SECONDS,
    "sample": SAMPLE,
    "thread": FUZZ_FRAMES | {"TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"},
    "address": FUZZ_FRAMES
    | {
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


def _build(folder: str, **defines: str) -> Path:
    build, cmake = REPOSITORY / "build" / folder, _tool("cmake")
    configure = [
        *[cmake, "-S", str(NATIVE), "-B", str(build), "-G", "Ninja"],
        *(f"-D{name}={value}" for name, value in defines.items()),
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
    ]
    # The installation's settings stay as they are, so that its objects are not compiled again.
    commands = [] if (build / "build.ninja").exists() and not defines else [configure]
    for command in (
        *commands,
        [cmake, "--build", str(build), "--target", "lockstep_tests", "lockstep"],
    ):
        done = _run(command, BUILD_SECONDS)
        assert done.returncode == 0, done.stdout
    return build / "tests" / "lockstep_tests"


@pytest.fixture(scope="module")
def program() -> Path:
    return _build(Path(sys.prefix).name)


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def sanitized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    _check_compiler(request.param, tmp_path_factory.mktemp("compiler"))
    return request.param, _build(f"native-tests-{request.param}", LOCKSTEP_SANITIZE=request.param)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the tests for aarch64, under qemu."""
    if platform.machine() == "aarch64":
        pytest.skip("this machine is an aarch64: the tests run on it as they are")
    emulator = next(filter(None, map(shutil.which, EMULATORS)), None)
    if emulator is None or not _loads_openssl(emulator, tmp_path_factory.mktemp("emulator")):
        pytest.skip(f"no emulator of an aarch64 with OpenSSL ({EMULATED})")
    defines = script.cmake_defines("aarch64") | {"LOCKSTEP_SEGMENT_GIB": SEGMENT_UNDER_QEMU}
    return [emulator, str(_build("native-tests-aarch64", **defines))]


def _loads_openssl(emulator: str, folder: Path) -> bool:
    source, program = folder / "load.cc", str(folder / "load")
    source.write_text(
        '#include <dlfcn.h>\nint main() { return dlopen("libssl.so.3", RTLD_NOW) == nullptr; }\n'
    )
    command = [str(script.compiler("aarch64")), str(source), "-ldl", "-o", program]
    built = _run(command, BUILD_SECONDS)
    assert built.returncode == 0, built.stdout
    return _run([emulator, program], 60).returncode == 0


def _run_group(program: Path, group: str, how: str) -> subprocess.CompletedProcess[str]:
    return _run([str(program), group], GROUP_SECONDS[how], **ENVIRONMENT[how])


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
        yield {group: pool.submit(_run_group, program, group, "sample") for group in groups}


@pytest.mark.parametrize("group", sorted(GROUPS, key=MOSTLY_WAIT.__contains__))
def test_native(
    program: Path, started: dict[str, Future[subprocess.CompletedProcess[str]]], group: str
) -> None:
    _check(started[group].result() if group in started else _run_group(program, group, "sample"))


@needs(ucx.is_here(), ucx.WHY)
@sample("group", OVER_UCX, OVER_UCX.index("schedules"))
def test_native_over_ucx(program: Path, group: str) -> None:
    more = SAMPLE | {"LOCKSTEP_TEST_UCX": ucx.library(), **UCX_TCP}
    _check(_run([str(program), group], GROUP_SECONDS["sample"], **more))


@pytest.mark.full
@needs(ucx.is_here(), ucx.WHY)
@pytest.mark.parametrize("group", ["collectives", "mailboxes", "schedules"])
def test_native_over_ucx_with_rendezvous_for_all(program: Path, group: str) -> None:
    more = SAMPLE | UCX_TCP | {"LOCKSTEP_TEST_UCX": ucx.library(), "UCX_RNDV_THRESH": "1"}
    _check(_run([str(program), group], GROUP_SECONDS["sample"], **more))


@pytest.mark.full
@pytest.mark.parametrize("group", SAMPLED)
def test_native_with_every_layout_and_round(program: Path, group: str) -> None:
    _check(_run_group(program, group, ""))


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS + GROUP_SECONDS["thread"])
@pytest.mark.parametrize("group", GROUPS)
def test_native_sanitized(sanitized: tuple[str, Path], group: str) -> None:
    sanitizer, program = sanitized
    _check(_run_group(program, group, sanitizer))


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS + GROUP_SECONDS["aarch64"])
@pytest.mark.parametrize("group", [group for group in GROUPS if group not in NEED_PROCESS_VM_READV])
def test_native_emulated(emulated: list[str], group: str) -> None:
    done = _run([*emulated, group], GROUP_SECONDS["aarch64"])
    failed = set(re.findall(r"^FAILED (\S+)$", done.stdout, re.MULTILINE))
    assert failed <= NOT_EMULATED, done.stdout
    assert done.stdout.endswith(f" tests, {len(failed)} failed\n"), done.stdout
