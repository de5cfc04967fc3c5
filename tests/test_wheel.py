"""The checks of `make wheel`, and a wheel in fresh environments that have no compiler."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from lockstep.engine import bindings
from processes import captured
from script_modules import load
from version_matrix import environments

ARCHITECTURES = ("x86_64", "aarch64")
script = load("wheel")
SOUND = script.Library(
    machine=script.MACHINES["x86_64"],
    needed=("libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"),
    glibc=(2, 27),
    exported=("MPIABI_Allreduce", "lockstep_start", "mpiabi_version_major"),
)
READELF = """\
ELF Header:
  Machine:                           AArch64

Dynamic section at offset 0x1 contains 2 entries:
 0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]

Symbol table '.dynsym' contains 6 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND{blank}
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.17 (2)
     2: 0000000000000000     0 NOTYPE  WEAK   DEFAULT  UND __gmon_start__
     3: 00000000000be000    12 FUNC    GLOBAL DEFAULT   14 lockstep_start
     4: 00000000000be010     8 OBJECT  GLOBAL DEFAULT   15 MPIABI_INT
     5: 00000000000be020     8 OBJECT  UNIQUE DEFAULT   15 _ZNSs4_Rep20_S_empty_rep_storageE

Version needs section '.gnu.version_r' contains 1 entry:
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 3
  0x0020:   Name: GLIBC_2.17  Flags: none  Version: 2
""".replace("{blank}", " ")


def test_a_library_is_what_readelf_prints() -> None:
    assert script.parse_readelf(READELF) == script.Library(
        machine="AArch64",
        needed=("libm.so.6", "libc.so.6"),
        glibc=(2, 17),
        exported=("MPIABI_INT", "_ZNSs4_Rep20_S_empty_rep_storageE", "lockstep_start"),
    )


def test_a_sound_library_has_no_problems() -> None:
    assert list(script.library_problems(SOUND, "x86_64")) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "AArch64"}, "it is for the machine 'AArch64', not for x86_64"),
        ({"needed": ("libc.so.6", "libc++.so.1")}, r"it needs libc\+\+.so.1, which not every"),
        ({"glibc": (2, 29)}, "it needs glibc 2.29"),
        ({"exported": ("MPIABI_INT", "_Znwm")}, "it exports 1 names .* such as _Znwm"),
        ({"exported": ("lockstep_start",)}, "it does not export the interface"),
    ],
)
def test_a_library_that_cannot_be_in_a_wheel(change: dict, words: str) -> None:
    [problem] = script.library_problems(dataclasses.replace(SOUND, **change), "x86_64")
    assert re.match(words, problem), problem


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_name_of_a_wheel_says_where_it_runs(architecture: str) -> None:
    good = f"lockstep_jax-0.1.0-py3-none-manylinux_2_28_{architecture}.whl"
    assert list(script.name_problems(good, architecture)) == []
    assert script.architecture_of(Path(good)) == architecture
    for bad in (good.replace("manylinux_2_28", "linux"), good.replace("py3-none", "cp311-cp311")):
        [problem] = script.name_problems(bad, architecture)
        assert f"py3-none-manylinux_2_28_{architecture}.whl" in problem


def test_a_wheel_for_another_architecture() -> None:
    with pytest.raises(script.WheelError, match="it is for none of x86_64, aarch64"):
        script.architecture_of(Path("lockstep_jax-0.1.0-py3-none-manylinux_2_28_ppc64le.whl"))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ('is consistent with the following\nplatform tag: "manylinux_2_28_x86_64".', True),
        ('is consistent with\nthe following platform tag:\n"manylinux_2_17_x86_64".', True),
        ('is consistent with the following platform tag: "manylinux_2_31_x86_64".', False),
        ('is consistent with the following platform tag: "manylinux_2_28_aarch64".', False),
        ('is consistent with the following platform tag: "linux_x86_64".', False),
        ("", False),
    ],
)
def test_what_auditwheel_shows(shown: str, expected: bool) -> None:
    assert script.is_consistent(shown, "x86_64") is expected


@pytest.mark.parametrize("name", sorted(script.LIBRARIES))
def test_an_installed_library_exports_nothing_but_its_interface(name: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf (binutils)")
    exported = script.read_library(bindings.installed(Path(name).name)).exported
    assert any(symbol.startswith(script.LIBRARIES[name]) for symbol in exported)
    assert [symbol for symbol in exported if not script.INTERFACE.fullmatch(symbol)] == []


def test_the_engine_has_no_kernel_of_linalg() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf (binutils)")
    engine = script.read_library(bindings.installed(bindings.FILE)).exported
    kernels = script.read_library(bindings.installed(bindings.KERNELS)).exported
    assert {"lockstep_hemv", "lockstep_potrf"} <= set(kernels)
    assert not set(engine) & set(kernels)


VERSIONS = ("3.11", "3.12", "3.13")
MINUTE = 60
PROGRAM = """
    import jax, numpy as np
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec as P
    jax.distributed.initialize()
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.make_array_from_callback(
        (4,), NamedSharding(mesh, P("x")), lambda at: np.arange(1.0, 5.0)[at])
    f = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    print("sum", np.asarray(jax.jit(f)(x).addressable_shards[0].data))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {each: script.build(each, folder) for each in ARCHITECTURES}


@pytest.mark.slow
@pytest.mark.timeout(40 * MINUTE)
def test_the_wheels_have_one_interface(wheels: dict[str, Path], tmp_path: Path) -> None:
    exported = set()
    for architecture, wheel in wheels.items():
        folder = tmp_path / architecture
        shutil.unpack_archive(wheel, folder, "zip")
        exported.add(script.read_library(folder / "lockstep" / bindings.FILE).exported)
    assert exported == {script.read_library(bindings.installed(bindings.FILE)).exported}


@pytest.mark.slow
@pytest.mark.timeout(40 * MINUTE)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_wheel_works_without_a_compiler(
    wheels: dict[str, Path], version: str, tmp_path: Path
) -> None:
    python = environments.interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    wheel = wheels.get(os.uname().machine)
    if wheel is None:
        pytest.skip(f"no wheel for this machine's {os.uname().machine}")
    home = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", str(home)], check=True, timeout=2 * MINUTE)
    fresh = {"PATH": str(home / "bin"), "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--only-binary", ":all:", "-q"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=15 * MINUTE, env=fresh | settings)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [home / "bin" / "lockstep", "run", "-n", "2", "-d", "2", program]
    done = captured(command, env=fresh, timeout=5 * MINUTE)
    assert done.returncode == 0, done
    assert sorted(re.findall(r"\[(\d)\] sum \[10\.\]", done.stdout)) == ["0", "1"], done
