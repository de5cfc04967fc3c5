"""The key of a job, and the keys derived from it: of TLS, of records, of certificates.

The user gives it in a file (LOCKSTEP_KEY_FILE), or the launcher that has started all processes, on
one host or on several, draws a secret for each run and leaves it in the private directory that the
run has on each host. It is used for nothing itself: `derive` makes a key for each purpose.

    lockstep.bootstrap.engine_start    the engine's, with which TLS between hosts authenticates
    lockstep.bootstrap.certificates    the authority of TLS with JAX's coordination service
    lockstep.bootstrap.peers           the number that tells the starts of engines apart
    lockstep.job.kv_store              what authenticates records in JAX's key-value store, which
                                       is open to every client that reaches its port
    lockstep.launch.worker_job         what the agents of a job and their supervisor prove to have

A record that is authenticated with the key also confirms a guess of it, offline. So the key must be
random: a phrase can be guessed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import os
import stat

from lockstep import _config, _run_files

VARIABLE = "LOCKSTEP_KEY_FILE"
SHORTEST = 32
_MAX_BYTES = 1 << 16
"""More of them make no better key."""
_OTHERS_MAY = 0o066
"""Group or others read or write."""


def make_key(path: str = "~/.lockstep-key") -> str:
    """What to type for a key file."""
    return f"(umask 077; openssl rand -hex 32 > {path})"


@dataclasses.dataclass(frozen=True)
class JobKey:
    """The key of a job, or why the file that LOCKSTEP_KEY_FILE names gives none."""

    key: bytes | None = dataclasses.field(default=None, repr=False)
    problem: str = ""
    fix: str = ""
    is_secret_of_run: bool = False
    """Whether the launcher drew it, so that only processes of the same launcher have it."""


def job_key(processes: int) -> bytes | None:
    """The key of this process's job of so many processes; None without one."""
    return own(processes).key


@functools.cache
def own(processes: int) -> JobKey:
    """The key file's, or else the secret of the run on this host.

    The secret is for a job whose processes one launcher has started, all of them: a program may
    join the processes of several launchers.
    """
    config = _config.current()
    file = read_key(config.key_file)
    if file.key is not None:
        return file
    # Whether one launcher has started all processes: on this host, or by ``lockstep run --hosts``.
    is_whole = config.local_num_processes == config.num_processes or config.num_hosts is not None
    is_job = is_whole and config.num_processes == processes
    # A launcher leaves a secret where it has started the whole job.
    if is_job and config.run_dir:
        if secret := read_key(os.path.join(config.run_dir, _run_files.SECRET)).key:
            return JobKey(secret, is_secret_of_run=True)
    return JobKey(None, f"{file.problem} {file.fix}".strip())


def derive(key: bytes, purpose: str, length: int = 32) -> bytes:
    """A key for one purpose alone: HKDF with SHA-256 (RFC 5869), without a salt."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    block = made = b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + purpose.encode() + bytes([number]), "sha256")
        made += block
    return made[:length]


def read_key(path: str | None) -> JobKey:
    """Raises nothing: where the processes are on one host, no key file is needed."""
    if not path:
        return JobKey()
    path = os.path.expanduser(path)
    try:
        # A pipe would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            problem, fix = _problem_of_file(path, os.fstat(fd))
            contents = b"" if problem else os.read(fd, _MAX_BYTES).strip()
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        why = error.strerror if isinstance(error, OSError) else error
        return _unusable(path, f"cannot be read ({why})", f"Make a key: {make_key()}")
    if problem:
        return _unusable(path, problem, fix)
    if len(contents) < SHORTEST:
        problem = f"has {len(contents)} characters, and a key has at least {SHORTEST}"
        return _unusable(path, problem, f"Make one: {make_key(path)}")
    return JobKey(hashlib.sha256(contents).digest())


def _unusable(path: str, problem: str, fix: str) -> JobKey:
    return JobKey(None, f"{VARIABLE}={path}: the file {problem}.", fix)


def _problem_of_file(path: str, found: os.stat_result) -> tuple[str, str]:
    """What is wrong with it, and what to do about that; two empty texts where nothing is."""
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file", f"Make a key: {make_key()}"
    if found.st_uid not in (os.geteuid(), 0):
        return (
            f"belongs to user {found.st_uid}, so that this user knows and may change the key",
            f"Make one of your own: {make_key()}",
        )
    if mode & _OTHERS_MAY:
        return f"can be read or written by others (mode {mode:04o})", f"Type: chmod 600 {path}"
    return "", ""
