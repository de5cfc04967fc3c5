"""Surroundings that forbid something: a job works, or ends before its program with one reason."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

import ssh_hosts
from lanes import full, needs
from processes import captured, clean_environ

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
count, size = jax.device_count(), 1 << 18
mesh = jax.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
ones = lambda index: np.ones(size, np.float32)
x = jax.make_array_from_callback((count * size,), NamedSharding(mesh, P("x")), ones)
with open(f"right-{jax.process_index()}", "w") as file:
    file.write(str(float(jax.jit(jnp.sum)(x)) == count * size))
"""
LOCKSTEP = f"{sys.executable} -P -m lockstep run -n 2 -d 2 program.py"
FORBID = f"{sys.executable} {Path(__file__).parent / 'forbid_calls.py'}"
SYSCALLS = {
    "x86_64": {
        "process_vm_readv": 310,
        "memfd_create": 319,
        "pidfd": "434,424",
        "flock": 73,
        "mknod": "133,259",
        "link": "86,265",
        "bind": 49,
    },
    "aarch64": {
        "process_vm_readv": 270,
        "memfd_create": 279,
        "pidfd": "434,424",
        "flock": 32,
        "mknod": "33",
        "link": "37",
        "bind": 200,
    },
}.get(platform.machine(), {})
MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
NETWORK = [*MOUNTS[:3], "--net", "bash", "-c"]
NAMED = [*MOUNTS[:3], "--uts", "bash", "-c"]
HERE = ["bash", "-c"]
OWN_TMPDIR = "mkdir tmp && TMPDIR=$PWD/tmp exec {forbid}"
"""A temporary directory on a file system that lacks something."""

WORKS = {
    "no process_vm_readv": (HERE, "exec {forbid} {process_vm_readv} {run}"),
    "no pidfd_open": (HERE, "exec {forbid} {pidfd} {run}"),
    # An address of more than 28 bytes is the path of a socket.
    "TMPDIR without sockets": (HERE, f"{OWN_TMPDIR} {{bind}}:28 {{run}}"),
    "no /dev/shm": (MOUNTS, "{no_shm} exec {run}"),
    "a full /dev/shm": (MOUNTS, "mount -t tmpfs -o size=16k none /dev/shm && exec {run}"),
    "a read-only /dev/shm": (MOUNTS, "mount -t tmpfs -o ro none /dev/shm && exec {run}"),
    "a read-only home": (
        MOUNTS,
        "mkdir home && mount -t tmpfs -o ro none home && HOME=$PWD/home exec {run}",
    ),
    "64 descriptors": (HERE, "ulimit -n 64 && exec {run}"),
    "SIGPIPE ignored": (HERE, "trap '' PIPE && exec {run}"),
    "stdin and stdout closed": (HERE, "exec {run} <&- >&-"),
    "all streams closed": (HERE, "exec {run} <&- >&- 2>&-"),
    "all streams closed, python -O": (HERE, "PYTHONOPTIMIZE=1 exec {run} <&- >&- 2>&-"),
    "a locale of ASCII": (HERE, "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 exec {run}"),
    "an unknown host name": (NAMED, "hostname nowhere.invalid && exec {run}"),
}
ENDS = {
    "no memfd_create": (
        HERE,
        "exec {forbid} {memfd_create} {run}",
        "memfd_create failed: Operation not permitted",
    ),
    "an address space of 8 GB": (
        HERE,
        "ulimit -v 8000000 && exec {run}",
        "cannot map the shared memory (is the address space limited, `ulimit -v`?)",
    ),
    "TMPDIR that is read-only": (
        MOUNTS,
        "mkdir tmp && mount -t tmpfs -o ro none tmp && TMPDIR=$PWD/tmp exec {run}",
        "Read-only file system. Set TMPDIR to a writable directory.",
    ),
    "TMPDIR without locks": (
        HERE,
        f"{OWN_TMPDIR} {{flock}}=95 {{run}}",
        "/tmp: Operation not supported. File systems of a network or of another system may not "
        "have that: set TMPDIR to a directory of a local disk, or of memory.",
    ),
    "TMPDIR without FIFOs": (HERE, f"{OWN_TMPDIR} {{mknod}} {{run}}", "cannot make a FIFO in "),
    "TMPDIR without links": (HERE, f"{OWN_TMPDIR} {{link}} {{run}}", "cannot make a hard link in "),
    "IPv6 alone": (
        NETWORK,
        "ip link set lo up && ip address del 127.0.0.1/8 dev lo && exec {run}",
        "no port on 127.0.0.1 is available for the coordination service",
    ),
}
NETWORK_FS = f"{sys.executable} {Path(__file__).parent / 'network_fs.py'}"
ON_NETWORK = (
    "mkdir store tmp && "
    "{{ setpriv --pdeathsig KILL {network_fs} $PWD/store $PWD/tmp {lacks} & }} && "
    "timeout 30 sh -c 'until mountpoint -q tmp; do sleep 0.1; done' && "
    "TMPDIR=$PWD/tmp {run}; status=$?; umount tmp; exit $status"
)
"""A temporary directory on a file system in user space."""
NO_SHM = (
    "mkdir dev && for d in null zero full random urandom; do touch dev/$d && "
    "mount --bind /dev/$d dev/$d; done && mount --rbind dev /dev && test ! -e /dev/shm && "
)
IN_MAKE_TEST = ("no process_vm_readv",)
pytestmark = needs(
    ssh_hosts.possible() and bool(SYSCALLS),
    "needs root and namespaces, and a machine whose system calls are known",
)


def run(
    folder: Path, enter: list[str], command: str, lacks: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    words = {"run": LOCKSTEP, "forbid": FORBID, "network_fs": NETWORK_FS, "lacks": lacks}
    command = command.format(no_shm=NO_SHM, **words, **SYSCALLS)
    return captured([*enter, command], env=clean_environ(), cwd=folder, timeout=90)


@pytest.mark.full
@pytest.mark.parametrize("name", [n if n in IN_MAKE_TEST else full(n) for n in WORKS])
def test_a_job_works_without(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, *WORKS[name])
    assert done.returncode == 0, done
    assert [(tmp_path / f"right-{p}").read_text() for p in range(2)] == ["True", "True"]


@pytest.mark.full
@pytest.mark.parametrize("name", ENDS)
def test_a_job_that_cannot_work_ends_with_the_reason(name: str, tmp_path: Path) -> None:
    enter, command, reason = ENDS[name]
    done = run(tmp_path, enter, command)
    assert done.returncode not in (0, 124), done
    assert reason in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("right-*"))
    assert not list(tmp_path.glob("tmp/lockstep-*"))


def has_fuse() -> bool:
    try:
        import mfusepy as mfusepy
    except (ImportError, OSError):  # OSError: libfuse is not installed
        return False
    return Path("/dev/fuse").exists()


@pytest.mark.full
@needs(has_fuse(), "needs mfusepy, libfuse3 and /dev/fuse")
@pytest.mark.parametrize("lacks", ["", "locks sockets"], ids=["nothing", "locks and sockets"])
def test_a_temporary_directory_of_a_network_that_lacks(lacks: str, tmp_path: Path) -> None:
    done = run(tmp_path, ["unshare", "--mount", "bash", "-c"], ON_NETWORK, lacks)
    assert done.returncode == 0, done
    assert [(tmp_path / f"right-{p}").read_text() for p in range(2)] == ["True", "True"]
    assert not list(tmp_path.glob("store/lockstep-*"))
