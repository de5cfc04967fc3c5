"""Certificates for JAX's coordination service, made from the job's key (jax 0.11.2 and later).

With them the service and its clients speak TLS, and each proves that it belongs to the job:
the key-value store and the heartbeats are encrypted and authenticated. The authority's private key
is derived from the job's key, so every process makes the same authority by itself, and no
certificate travels. Each process signs one for itself. Its files are in memory, gone with the
process; jaxlib reads them again from time to time.

The dates are far apart: a host's clock may be wrong, and what ends a certificate is the job's end,
with which its private key is gone.
"""

from __future__ import annotations

import datetime
import functools
import os
from typing import Any

from lockstep import _config
from lockstep._errors import ConfigError
from lockstep.job import job_key

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of P-256: its private keys are the numbers below."""
_BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)

_files: dict[str, int] = {}
"""jaxlib's arguments, and the descriptors of what they name, once they were made."""


def arguments(processes: int) -> dict[str, str]:
    """What jaxlib's service and client are given; {} where this job has no key.

    Raises `ConfigError` for a key file that cannot be used: the others would not let us in.
    """
    key = _key(processes)
    if key is None:
        return {}
    if not _files:
        texts = make(key)
        _files.update({name: _in_memory(text) for name, text in texts.items()})
    paths = {name: f"/proc/self/fd/{fd}" for name, fd in _files.items()}
    return {**paths, "mtls_peer_uri_prefix": _uri(key)}


def descriptors() -> list[int]:
    """Those that a child which serves must keep."""
    return list(_files.values())


def _key(processes: int) -> bytes | None:
    config = _config.current()
    own = job_key.own(processes)
    on_one_host = config.local_num_processes == config.num_processes == processes
    if own.problem and not on_one_host:
        raise ConfigError(own.problem)
    return own.key


def _uri(key: bytes) -> str:
    return f"lockstep://{job_key.derive(key, 'lockstep: name of the job', 16).hex()}/"


def make(key: bytes) -> dict[str, bytes]:
    """The PEM texts by the names of jaxlib's arguments."""
    # Late import: it takes 0.1 s, and a job without a key does not need it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    derived = int.from_bytes(job_key.derive(key, "lockstep: authority of the job", 48), "big")
    authority = ec.derive_private_key(derived % (_ORDER - 1) + 1, ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("Lockstep job")
    marked = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        _certificate(issuer, issuer, authority.public_key(), 1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(marked, critical=False)
        .sign(authority, hashes.SHA256())
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    uri = x509.UniformResourceIdentifier(_uri(key) + "process")
    by_issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(marked)
    serial = x509.random_serial_number()
    leaf = (
        _certificate(_name("Lockstep process"), issuer, own.public_key(), serial)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(by_issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return {
        "mtls_cert_file": leaf.public_bytes(pem),
        "mtls_key_file": own.private_bytes(pem, form, plain),
        "mtls_ca_file": root.public_bytes(pem),
    }


@functools.cache
def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _certificate(subject: Any, issuer: Any, public_key: Any, serial: int) -> Any:
    from cryptography import x509

    builder = x509.CertificateBuilder(issuer, subject, public_key, serial)
    return builder.not_valid_before(_BEGIN).not_valid_after(_END)


def _in_memory(text: bytes) -> int:
    fd = os.memfd_create("lockstep-certificate", os.MFD_CLOEXEC)
    os.write(fd, text)
    os.fchmod(fd, 0o600)
    return fd
