"""The first exchange of a job: the processes publish their records, and prove that they have the
same key.

Every process publishes its record (`topology.Peer`) with a random number in it. Once it has those
of all others, everything that follows is authenticated with a key that is bound to these records
(`kv_store.Store.bound_to`). So a record of an earlier job with the same key is refused.
A process never reads its own record back: another client may have changed it in the store.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
from collections.abc import Sequence
from typing import Any

from lockstep._errors import ConfigError, DisagreementError, InitializationError
from lockstep._words import printable
from lockstep.bootstrap import startup_liveness
from lockstep.job import job_key
from lockstep.job.kv_store import PREFIX, Proof, Record, Store
from lockstep.job.topology import Peer

_FOLDER = f"{PREFIX}/peer"
_MAX_LABELS = 4
_MAX_CLAIM = 300
"""Characters of a record that is not believed."""


@dataclasses.dataclass(frozen=True)
class Peers:
    """The processes of a job, and the store in which they go on."""

    all: list[Peer]
    store: Store
    texts: Sequence[str]
    key: bytes | None = dataclasses.field(repr=False)

    def nonce(self, epoch: int) -> int:
        """A number that all processes know and no other job has, for the ``epoch``-th start of
        their engines. With a key, an unauthenticated client does not know it."""
        joined = "\0".join([*self.texts, str(epoch)]).encode()
        digest = job_key.derive(
            (self.key or b"") + hashlib.sha256(joined).digest(), "lockstep nonce"
        )
        return int.from_bytes(digest[:8], "big") >> 1


def exchange(client: Any, own: Peer, key: job_key.JobKey, count: int) -> Peers:
    """Publishes this process's record and waits for those of the others.

    Raises, on every process that receives it: `DisagreementError` where not all have the same key,
    `ConfigError` and `InitializationError` for a key file that is of no use while others have one.
    """
    store = Store(client, key.key)
    own = dataclasses.replace(own, random=secrets.token_hex(16), key_problem=key.problem)
    text = store.put(f"{_FOLDER}/{own.process}", dataclasses.asdict(own))

    def receive(other: int, _: str) -> Record | None:
        return startup_liveness.first_record(store, _FOLDER, other, count)

    gathered = enumerate(store.gather(_FOLDER, own.process, count, None, receive))
    records = {other: record for other, record in gathered if record is not None}
    _check_keys(own, key, records)
    texts = [text if i == own.process else records[i].text for i in range(count)]
    found = [own if i == own.process else _peer(i, records[i]) for i in range(count)]
    return Peers(found, store.bound_to(texts), texts, key.key)


def _peer(process: int, record: Record) -> Peer:
    peer = Peer.from_fields(record.content().get("value"))
    if peer.process != process:
        raise InitializationError(
            f"the record of process {process} in JAX's key-value store is one of process "
            f"{peer.process}. Does an unauthenticated client write into the store?"
        )
    return peer


def _check_keys(own: Peer, key: job_key.JobKey, records: dict[int, Record]) -> None:
    proofs = {process: record.proof for process, record in records.items()}
    if all(proof is Proof.VALID for proof in proofs.values()):
        return
    if own.key_problem:
        raise ConfigError(own.key_problem)
    wrong = [_claimed(i, records[i]) for i, proof in proofs.items() if proof is Proof.WRONG]
    if wrong and key.is_secret_of_run:
        raise DisagreementError(
            f"{own.label} and {_names(wrong)} have different secrets, although one launcher has "
            "started all of them on this host: they do not share the directory that TMPDIR names "
            f"(here {os.environ.get('TMPDIR') or '/tmp'}). Give all of them the same one. "
            f"Containers without a common one need a key file ({job_key.VARIABLE}), and a "
            "LOCKSTEP_HOST_ID each."
        )
    if wrong:
        raise DisagreementError(
            f"the files that {job_key.VARIABLE} names hold different keys; another one than "
            f"{own.label} has: {_names(wrong)}. Copy one file to all hosts. If all have the same, "
            "an unauthenticated client writes into JAX's key-value store."
        )
    without = {i for i, proof in proofs.items() if proof is Proof.MISSING}
    if key.key is None:  # the others have one
        without = {own.process, *(i for i, proof in proofs.items() if proof is Proof.VALID)}
    claims = [own if i == own.process else _claimed(i, records[i]) for i in sorted(without)]
    if problem := next((each.key_problem for each in claims if each.key_problem), ""):
        label = next(each.label for each in claims if each.key_problem)
        raise InitializationError(f"{label}: {problem}")
    raise DisagreementError(_lacking(_names(claims), key.is_secret_of_run))


def check_key_files(peers: Sequence[Peer], process: int) -> None:
    """Where no process of several hosts has a key: raises, on all, for a file that is of no use."""
    if peers[process].key_problem:
        raise ConfigError(peers[process].key_problem)
    for peer in peers:
        if peer.key_problem:
            raise InitializationError(f"{peer.label}: {peer.key_problem}")


def _lacking(names: str, is_secret_of_run: bool) -> str:
    if is_secret_of_run:
        return (
            f"the secret of this run, which the launcher has drawn, is not known to {names}. Start "
            "all processes of a job with one launcher. If they were, an unauthenticated client "
            "writes into JAX's key-value store."
        )
    return (
        f"{job_key.VARIABLE} is set for some processes only; without it: {names}. Give all of them "
        "a file with the same key, and the engine is used on several hosts too, or give it to "
        "none. If all have it, an unauthenticated client writes into JAX's key-value store."
    )


def _claimed(process: int, record: Record) -> Peer:
    """What an unauthenticated record says, for an error's text alone."""
    try:
        peer = Peer.from_fields(record.content().get("value"))
    except InitializationError:
        return Peer(process, 0, "", "an unknown host", ())
    host, problem = (printable(text, _MAX_CLAIM) for text in (peer.host_name, peer.key_problem))
    return dataclasses.replace(peer, process=process, host_name=host, key_problem=problem)


def _names(peers: Sequence[Peer]) -> str:
    more = [f"{len(peers) - _MAX_LABELS} more"] if len(peers) > _MAX_LABELS else []
    return ", ".join([*(peer.label for peer in peers[:_MAX_LABELS]), *more])
