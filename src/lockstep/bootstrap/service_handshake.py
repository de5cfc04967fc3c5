"""Whether this process and JAX's coordination service have the same key, before jaxlib connects.

jaxlib's client repeats a handshake that fails until the deadline of the start, and then knows only
that the time is over. So a process makes the handshake once by itself and reads why it fails. On
one host nothing has to be asked: all processes have the launcher's secret.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Mapping

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.bootstrap import coordinator_address

_PAUSE_SECONDS = 0.1
_ANSWER_SECONDS = 5.0


def check(address: str, files: Mapping[str, str], seconds: float) -> float:
    """Waits for the service to listen; returns the seconds that are left of ``seconds``.

    ``files`` are jaxlib's arguments for mutual TLS, {} where this process has no key. Raises
    `InitializationError` where the service has another key, or only one side has one. Whatever else
    keeps this process from the service is jaxlib's to report.
    """
    end = time.monotonic() + seconds
    until = end - seconds / 2  # jaxlib gets the other half where nothing can be found out
    config = _config.current()
    if not config.num_processes == config.local_num_processes is not None:
        with contextlib.suppress(ValueError):  # an address that only gRPC understands
            _check(coordinator_address.split(address), address, files, until)
    return max(1.0, end - time.monotonic())


def _check(at: tuple[str, int], address: str, files: Mapping[str, str], end: float) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(at, _ANSWER_SECONDS) as peer:
            if problem := _problem(_speaks_tls(peer, files), files):
                raise InitializationError(
                    f"JAX's coordination service at {address} {problem} Give all processes of the "
                    "job the same LOCKSTEP_KEY_FILE, and the same jax."
                )
            return
        time.sleep(_PAUSE_SECONDS)


def _problem(speaks_tls: bool | None, files: Mapping[str, str]) -> str:
    if speaks_tls is None:
        return "has another key than this process: they hold different keys."
    if speaks_tls and not files:
        return (
            "accepts only processes that have the job's key, and this process has none: "
            "LOCKSTEP_KEY_FILE is not set here."
        )
    if files and not speaks_tls:
        return (
            "does not encrypt, and this process has the job's key: process 0 has no "
            "LOCKSTEP_KEY_FILE, or a jax before 0.11.2."
        )
    return ""


def _speaks_tls(peer: socket.socket, files: Mapping[str, str]) -> bool | None:
    """Whether the service speaks TLS; None: with a certificate of another key. Raises OSError where
    that is not known, as for a proxy that accepts connections before the service listens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the authority, made from the key, signs for this job alone
    context.set_alpn_protocols(["h2"])
    if files:
        context.load_verify_locations(files["mtls_ca_file"])
        context.load_cert_chain(files["mtls_cert_file"], files["mtls_key_file"])
    else:
        context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(peer).close()
    except ssl.SSLCertVerificationError:
        return None
    except ssl.SSLError as error:
        if error.reason not in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            raise
        return False
    return True
