"""Builds the wheels: one per architecture, each for every Python 3 and for glibc 2.28 and later.

    python scripts/wheel.py [--output DIR] [ARCHITECTURE ...]

The compiler is the clang of the `ziglang` package, which links LLVM's libc++ statically and against
any glibc, for any architecture: docs/design/wheels.md has the reasons. A wheel that its checks
refuse is not left in DIR. `--check FILE ...` checks finished wheels and builds nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = (2, 28)
# The architecture and what readelf calls it.
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
# The libraries of a wheel, and how some names begin that each of them exports.
LIBRARIES = {
    "lockstep/liblockstep.so": "MPIABI_",
    "lockstep/liblockstep_linalg.so": "lockstep_",
    "lockstep/liblockstep_mpi.so": "MPIABI_",
}
# Parts of glibc. libstdc++ and libgcc_s, which manylinux permits too, come with a wheel from GCC.
PERMITTED = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux-[\w-]+)\.so\.\d+")
INTERFACE = re.compile(r"(lockstep|MPIX?ABI|mpiabi|mpiwrapper)_\w+")
BUILD_SECONDS = 1800


class WheelError(Exception):
    """A wheel was not built, or is not what it claims to be."""


@dataclasses.dataclass(frozen=True)
class Library:
    """What the dynamic linker finds in a shared library."""

    machine: str
    needed: tuple[str, ...]
    glibc: tuple[int, ...]
    """The newest version that a symbol wants; empty: none wants one."""
    exported: tuple[str, ...]


def platform_tag(architecture: str) -> str:
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{architecture}"


def parse_readelf(text: str) -> Library:
    """A `Library` from what ``readelf -W -h -d -V --dyn-syms`` prints."""
    machine = re.search(r"^ *Machine: *(.*?) *$", text, re.MULTILINE)
    versions = re.findall(r"\bName: GLIBC_(\d+(?:\.\d+)*)", text)
    # Num: Value Size Type Bind Vis Ndx Name; an Ndx that is a number is a section of the library.
    symbol = r"^ *\d+: [0-9a-f]+ +\S+ \w+ +(?:GLOBAL|WEAK|UNIQUE) +\w+ +(?:\d+|ABS) ([\w.$]+)"
    return Library(
        machine[1] if machine else "",
        tuple(re.findall(r"\(NEEDED\) .*\[(.*)\]", text)),
        max((tuple(map(int, version.split("."))) for version in versions), default=()),
        tuple(sorted(re.findall(symbol, text, re.MULTILINE))),
    )


def read_library(path: Path) -> Library:
    return parse_readelf(_output(["readelf", "-W", "-h", "-d", "-V", "--dyn-syms", str(path)]))


def library_problems(library: Library, architecture: str, prefix: str = "MPIABI_") -> Iterator[str]:
    """Why this library cannot be in a wheel for the architecture."""
    if library.machine != MACHINES[architecture]:
        yield f"it is for the machine {library.machine!r}, not for {architecture}"
    for name in library.needed:
        if not PERMITTED.fullmatch(name):
            yield f"it needs {name}, which not every system has"
    if library.glibc > GLIBC:
        yield f"it needs glibc {'.'.join(map(str, library.glibc))}"
    foreign = [name for name in library.exported if not INTERFACE.fullmatch(name)]
    if foreign:
        yield f"it exports {len(foreign)} names that are not its interface, such as {foreign[0]}"
    if not any(name.startswith(prefix) for name in library.exported):
        yield f"it does not export the interface {prefix}*"


def name_problems(name: str, architecture: str) -> Iterator[str]:
    """Why a wheel cannot have this file name."""
    tag = f"py3-none-{platform_tag(architecture)}"
    if not re.fullmatch(rf"lockstep_jax-[^-]+-{tag}\.whl", name):
        yield f"its name does not end in {tag}.whl"


def is_consistent(shown: str, architecture: str) -> bool:
    """Whether ``auditwheel show`` finds the wheel good for our glibc, or for an older one."""
    joined = " ".join(shown.split())
    found = re.search(r'platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', joined)
    return bool(found) and (int(found[1]), int(found[2])) <= GLIBC and found[3] == architecture


def architecture_of(wheel: Path) -> str:
    for architecture in MACHINES:
        if wheel.stem.endswith(f"_{architecture}"):
            return architecture
    raise WheelError(f"{wheel.name}: it is for none of {', '.join(MACHINES)}.")


def check(wheel: Path) -> None:
    """Raises `WheelError` unless the wheel keeps what its tag promises."""
    architecture = architecture_of(wheel)
    problems = list(name_problems(wheel.name, architecture))
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".so" in Path(name).suffixes}
        if found != set(LIBRARIES):
            problems.append(f"its libraries are {', '.join(sorted(found)) or 'none'}")
        for name in sorted(found):
            library = read_library(Path(archive.extract(name, folder)))
            found_problems = library_problems(library, architecture, LIBRARIES.get(name, ""))
            problems += [f"{name}: {text}" for text in found_problems]
    shown = _output([*_tool("auditwheel"), "show", str(wheel)])
    if not is_consistent(shown, architecture):
        problems.append(f"auditwheel says: {' '.join(shown.split())}")
    if problems:
        raise WheelError(f"{wheel.name}: " + "; ".join(problems) + ".")


def compiler(architecture: str) -> Path:
    """A C++ compiler for the architecture: one command without arguments, as CMake wants it."""
    path = ROOT / "build" / "zig" / f"{architecture}-c++"
    target = f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    command = [sys.executable, "-m", "ziglang", "c++", "-target", target]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written aside: several tests may ask for it at once.
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    new.chmod(0o755)
    new.replace(path)
    _compile_runtime(path)
    return path


def _compile_runtime(compiler: Path) -> None:
    """Links a program, for which zig compiles libc++ the first time.

    CMake's first link is a verbose one, in which zig would print megabytes of warnings about
    libc++, and CMake would parse them for minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.cc"
        source.write_text("int main() {}\n")
        _output([str(compiler), str(source), "-o", str(source.with_suffix(""))])


def cmake_defines(architecture: str) -> dict[str, str]:
    """What tells CMake about the target, also where it is this machine's own architecture."""
    return {
        "CMAKE_CXX_COMPILER": str(compiler(architecture)),
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": architecture,
    }


def build(architecture: str, output: Path) -> Path:
    """Builds, tags and checks one wheel; returns its place in ``output``."""
    # A build directory that stays makes a second build incremental.
    folder = ROOT / "build" / f"wheel-{architecture}"
    settings = {"build-dir": str(folder / "cmake"), "install.strip": "false"}
    # The linker strips, for binutils' strip knows this machine's architecture only.
    defines = cmake_defines(architecture) | {"CMAKE_SHARED_LINKER_FLAGS": "-s"}
    settings |= {f"cmake.define.{name}": value for name, value in defines.items()}
    command = [*_tool("build"), "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    for name, value in settings.items():
        command += ["-C", f"{name}={value}"]
    for old in folder.glob("*.whl"):
        old.unlink()
    _output(command, _PYTHON_HOST_PLATFORM=f"linux-{architecture}")
    (raw,) = folder.glob("*.whl")
    # `auditwheel repair` is not used: nothing is to be copied into the wheel, as `check` makes
    # sure, and it knows the tags of this machine's architecture only.
    tag = platform_tag(architecture)
    named = _output([*_tool("wheel"), "tags", "--remove", "--platform-tag", tag, str(raw)])
    tagged = folder / named.split()[-1]
    check(tagged)
    output.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(tagged, output / tagged.name))


def _tool(module: str) -> list[str]:
    return [sys.executable, "-m", module]


def _output(command: Sequence[str], **more: str) -> str:
    # scikit-build-core looks for CMake and ninja, which are beside this interpreter.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C", "PATH": path, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"{shlex.join(command)}: no end within {BUILD_SECONDS} s") from error
    if done.returncode != 0:
        raise WheelError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", nargs="+", type=Path, metavar="FILE", default=[])
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE")
    options = parser.parse_args()
    unknown = set(options.architectures) - set(MACHINES)
    if unknown:
        parser.error(f"{', '.join(unknown)}: wheels are for {' and '.join(MACHINES)}")
    try:
        for wheel in options.check:
            check(wheel)
            print(f"{wheel} is as its tag says.")
        for architecture in () if options.check else options.architectures or MACHINES:
            print(f"Building for {architecture}, {platform_tag(architecture)}.", flush=True)
            print(f"  {build(architecture, options.output)}")
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
