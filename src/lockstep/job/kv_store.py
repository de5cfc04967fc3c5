"""What processes publish in JAX's key-value store, authenticated with the job's key.

JAX's store has no authentication: any client that reaches its port reads and writes it. So, where
the job has a key (`job_key`), each record carries an HMAC of itself and of the name under which it
stands, and a record without it is an error, never a reason to do without the key. Records that
belong to one start of a job are authenticated with a key that is bound to the first records of all
its processes (`Store.bound_to`), so that records of an earlier job with the same key are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep import _jax_compat
from lockstep._errors import DisagreementError, InitializationError
from lockstep.job import job_key

PREFIX = "lockstep"
WAIT_SECONDS = 300
_TRIES = 10
_PAUSE_SECONDS = 0.1
_SLICE_SECONDS = 0.5
_MAX_READINGS = 8
"""Bounds the readings of a whole folder: more cost more than they save where processes come one
by one."""
_AUTHENTICATED = re.compile(r"([0-9a-f]{64}) (.*)", re.DOTALL)

Check = Callable[[], None]
"""Called twice a second while a process waits; what it raises ends the wait."""


def _go_on() -> None:
    pass


class Proof(enum.Enum):
    """Whether a record comes from a process with the same key."""

    VALID = "it does, or neither side has a key"
    MISSING = "the record has no HMAC, and this process has a key"
    WRONG = "the record has an HMAC of another key, another name or another start of the job"
    UNEXPECTED = "the record has an HMAC, and this process has no key"


@dataclasses.dataclass(frozen=True)
class Record:
    """A record as it was found: only what is `Proof.VALID` may be believed."""

    proof: Proof
    text: str
    """JSON: an object with "value" or "error"."""

    def content(self) -> dict[str, Any]:
        """Raises `InitializationError` for what this version of Lockstep has not written."""
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not {"value", "error"} & found.keys():
            raise InitializationError(
                "a record in JAX's key-value store is not in the form of this version of Lockstep. "
                "Do all processes have the same version?"
            )
        return found


class Store:
    """JAX's key-value store, through ``client``; ``key`` is the job's, None without one."""

    def __init__(self, client: Any, key: bytes | None = None) -> None:
        self.client = client
        self._key = None if key is None else job_key.derive(key, "lockstep records")
        self._ahead: dict[str, str] = {}
        """Records that `gather` has read before they were asked for."""

    def bound_to(self, texts: Sequence[str]) -> Store:
        """The same store for the processes that have agreed on ``texts``, which no other job has.

        Without a key it is this one.
        """
        bound = Store(self.client)
        if self._key is not None:
            bound._key = job_key.derive(self._key, f"lockstep job {_digest(texts)}")
        return bound

    def within(self, seconds: float) -> Store:
        """The same store, for a caller that must go on when the service is out of reach.

        A call without an answer in that time raises `TimeoutError`, and so does each one after it
        until the service has answered.
        """
        bounded = Store(self.client.within(seconds))
        bounded._key = self._key
        return bounded

    def put(self, name: str, value: Any, overwrite: bool = False) -> str:
        """Publishes ``value``, which is for JSON; returns the record's text."""
        return self._put(name, {"value": value}, overwrite)

    def put_error(self, name: str, error: Exception) -> None:
        self._put(name, {"error": str(error)})

    def _put(self, name: str, content: dict[str, Any], overwrite: bool = False) -> str:
        text = json.dumps(content)
        record = text if self._key is None else f"{self._hmac(name, text)} {text}"
        if overwrite:
            self.client.key_value_set(name, record, allow_overwrite=True)
            return text
        try:
            self.client.key_value_set(name, record)
        except Exception as error:
            if not _jax_compat.is_taken(error):
                raise
            raise InitializationError(
                f"the record {name} is in JAX's key-value store already. Either two processes of "
                "the job have the same number, or an unauthenticated client writes into it."
            ) from error
        return text

    def _hmac(self, name: str, text: str) -> str:
        assert self._key is not None
        return hmac.digest(self._key, f"{name}\0{text}".encode(), "sha256").hex()

    def _opened(self, name: str, record: str) -> Record:
        found = _AUTHENTICATED.fullmatch(record)
        if self._key is None:
            return Record(Proof.UNEXPECTED, found[2]) if found else Record(Proof.VALID, record)
        if found is None:
            return Record(Proof.MISSING, record)
        is_valid = hmac.compare_digest(found[1], self._hmac(name, found[2]))
        return Record(Proof.VALID if is_valid else Proof.WRONG, found[2])

    def _blocking_get(self, name: str, seconds: float) -> str:
        if (record := self._ahead.pop(name, None)) is not None:
            return record
        return self.client.blocking_key_value_get(name, max(1, int(seconds * 1000)))

    def record(
        self, name: str, writer: str, check: Check = _go_on, seconds: float | None = None
    ) -> Record:
        """Waits for a record of any writer; raises `InitializationError` naming ``writer``.

        ``seconds``: how long, if not `WAIT_SECONDS`.
        """
        seconds = WAIT_SECONDS if seconds is None else seconds
        end = time.monotonic() + seconds
        while True:
            left = min(_SLICE_SECONDS, end - time.monotonic())
            try:
                return self._opened(name, self._blocking_get(name, left))
            except Exception as error:
                if not _jax_compat.is_timeout(error):
                    raise InitializationError(
                        f"{writer} cannot be received; JAX's coordination service reports: {error}"
                    ) from error
                if time.monotonic() >= end:
                    raise InitializationError(
                        f"{writer} did not reach this point in {seconds} s. It may have failed "
                        "(see its output), may not import lockstep, or may run another program."
                    ) from error
            check()

    def get(
        self, name: str, writer: str, check: Check = _go_on, seconds: float | None = None
    ) -> Any:
        """What ``writer`` has published under ``name``; raises the error that it published."""
        content = self._believed(name, self.record(name, writer, check, seconds), writer)
        if "error" in content:
            text = str(content["error"]).removeprefix("lockstep: ")
            raise InitializationError(text if text.startswith(writer) else f"{writer}: {text}")
        return content["value"]

    def once(self, name: str, writer: str, seconds: float) -> Any:
        """As `get`, but what JAX's client raises after ``seconds`` without an answer is raised."""
        found = self._opened(name, self._blocking_get(name, seconds))
        return self._believed(name, found, writer)["value"]

    def values(self, folder: str) -> dict[str, Any]:
        """What is published under ``folder`` now, by the names below it, without errors."""
        found = self._contents(folder)
        return {name: content["value"] for name, content in found if "value" in content}

    def all_gather(
        self, folder: str, process: int, count: int, value: Any, receive: Callable[[int, str], Any]
    ) -> list[Any]:
        """Publishes ``value``; returns what each of ``count`` processes has published, in order.

        ``receive`` waits for what another process publishes, by its number and the record's name.
        """
        self.put(f"{folder}/{process}", value)
        return self.gather(folder, process, count, value, receive)

    def gather(
        self, folder: str, process: int, count: int, value: Any, receive: Callable[[int, str], Any]
    ) -> list[Any]:
        """As `all_gather`, of a ``value`` that this process has published already."""
        found, readings = [], 0
        for other in range(count):
            name = f"{folder}/{other}"
            if other == process:
                found.append(value)
                continue
            if name not in self._ahead and readings < _MAX_READINGS:
                # A single call reads all that is there by now, in place of one for each process.
                self._read_ahead(folder)
                readings += 1
            found.append(receive(other, name))
        self._ahead.pop(f"{folder}/{process}", None)
        return found

    def _read_ahead(self, folder: str) -> None:
        with contextlib.suppress(Exception):  # then each record is read for itself
            self._ahead.update(self.client.key_value_dir_get(f"{folder}/"))

    def errors(self, folder: str) -> dict[str, str]:
        """The errors that are published under ``folder`` now, by the names below it."""
        found = self._contents(folder)
        return {name: str(content["error"]) for name, content in found if "error" in content}

    def _contents(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, record in self.client.key_value_dir_get(f"{folder}/"):
            below = name.removeprefix(f"{folder}/")
            yield below, self._believed(name, self._opened(name, record), f"the writer of {name}")

    def _believed(self, name: str, record: Record, writer: str) -> dict[str, Any]:
        if record.proof is not Proof.VALID:
            raise DisagreementError(_refusal(name, record.proof, writer))
        return record.content()


def of_application(client: Any) -> Store:
    """For waits and checks of the application, which need no engine: not bound to one start."""
    return Store(client, job_key.job_key(_jax_compat.distributed_place()[1]))


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _refusal(name: str, proof: Proof, writer: str) -> str:
    what = {
        Proof.MISSING: f"{writer} has no key of this job",
        Proof.WRONG: f"{writer} has another key than this process, or repeats another job's record",
        Proof.UNEXPECTED: f"{writer} has a key, and this process has none",
    }[proof]
    return (
        f"{what}: the record {name} in JAX's key-value store cannot be believed. Either the "
        f"processes were not given the same {job_key.VARIABLE}, or an unauthenticated client "
        "writes into the store."
    )


@contextlib.contextmanager
def publishing_errors(store: Store, name: str) -> Iterator[None]:
    """Publishes what the block raises, so that processes which wait in `Store.get` raise it too."""
    try:
        yield
    except Exception as error:
        # The service may be what has failed: the first error is the one to be seen.
        with contextlib.suppress(Exception):
            store.put_error(name, error)
        raise


@contextlib.contextmanager
def failing_together(store: Store, prefix: str, process: int) -> Iterator[None]:
    """As `publishing_errors`, for a block that fails where it fails in another process.

    Then it raises what that one has published: the reason, where its own error is a consequence.
    """
    with publishing_errors(store, f"{prefix}/{process}"):
        try:
            yield
        except Exception as error:
            if reason := _published(store, prefix):
                raise InitializationError(reason) from error
            raise


def _published(store: Store, prefix: str) -> str:
    """An error under ``prefix``; "" where there is none.

    Its consequence may be seen before it is published: an engine that fails ends its connections
    first.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(Exception):
            for process, error in store.errors(prefix).items():
                return f"process {process}: {error.removeprefix('lockstep: ')}"
        time.sleep(_PAUSE_SECONDS)
    return ""
