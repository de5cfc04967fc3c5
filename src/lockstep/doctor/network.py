"""Names, ports and proxies, and the key for other hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from lockstep._finding import Finding, ok, problem, warning
from lockstep.job import job_key
from lockstep.system import openssl, ucx
from lockstep.system.interfaces import is_loopback
from lockstep.system.names import resolve

SECONDS = 5.0
FEW_PORTS = 1000


@dataclasses.dataclass(frozen=True)
class NetworkFacts:
    """Addresses that names resolve to (none: they do not), and what can be bound."""

    hostname: str
    addresses: tuple[str, ...]
    localhost: tuple[str, ...]
    loopback_error: str
    """Empty when a port of 127.0.0.1 can be opened and reached."""
    ipv6: bool
    ports: tuple[int, int] | None
    """First and last port that the system hands out."""


def probe_loopback(family: socket.AddressFamily, address: str) -> str:
    """Empty when a free port of ``address`` can be opened and reached, else the error."""
    try:
        with socket.socket(family) as listener:
            listener.bind((address, 0))
            listener.listen(1)
            with socket.create_connection(listener.getsockname()[:2], timeout=SECONDS):
                return ""
    except OSError as error:
        return str(error)


def _port_range() -> tuple[int, int] | None:
    with contextlib.suppress(OSError, ValueError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("utf-8").split()
        return int(first), int(last)
    return None


def probe() -> NetworkFacts:
    hostname = socket.gethostname()
    return NetworkFacts(
        hostname=hostname,
        addresses=resolve(hostname),
        localhost=resolve("localhost"),
        loopback_error=probe_loopback(socket.AF_INET, "127.0.0.1"),
        ipv6=socket.has_ipv6 and not probe_loopback(socket.AF_INET6, "::1"),
        ports=_port_range(),
    )


def check_hostname(facts: NetworkFacts) -> Finding:
    """gloo binds to the address of the own name; other hosts need one they can reach."""
    name = "host name"
    if not facts.addresses:
        return warning(
            name,
            f"{facts.hostname} does not resolve: --collectives gloo needs it",
            f"echo '127.0.1.1 {facts.hostname}' | sudo tee -a /etc/hosts",
        )
    found = f"{facts.hostname} is {', '.join(facts.addresses)}"
    if all(is_loopback(address) for address in facts.addresses):
        return warning(
            name,
            f"{found}: works on one host, but other hosts cannot reach this one by it",
            f"for jobs on several hosts give {facts.hostname} its network address in /etc/hosts",
        )
    return ok(name, found)


def check_localhost(facts: NetworkFacts) -> Finding:
    if not any(is_loopback(address) for address in facts.localhost):
        return problem(
            "localhost",
            f"resolves to {', '.join(facts.localhost) or 'nothing'}",
            "echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts",
        )
    return ok("localhost", ", ".join(facts.localhost))


def check_ports(facts: NetworkFacts) -> Finding:
    """JAX's coordination service listens on a free port."""
    if facts.loopback_error:
        return problem(
            "ports",
            f"a port of 127.0.0.1 cannot be opened and reached: {facts.loopback_error}",
            "sudo ip link set lo up; else check for a firewall or a sandbox that forbids sockets",
        )
    ipv6 = f"IPv6 {'on' if facts.ipv6 else 'off (not needed)'}"
    if facts.ports is None:
        return ok("ports", f"a free port of 127.0.0.1 opens; {ipv6}")
    first, last = facts.ports
    if last - first < FEW_PORTS:
        return warning(
            "ports",
            f"the system assigns only ports {first} to {last}",
            "sudo sysctl net.ipv4.ip_local_port_range='32768 60999'",
        )
    return ok("ports", f"a free port of 127.0.0.1 opens (from {first} to {last}); {ipv6}")


def check_proxies(environ: Mapping[str, str], hostname: str) -> Finding:
    """gRPC sends local connections through a proxy too, unless no_proxy excludes them."""
    proxies = sorted(
        name
        for name, value in environ.items()
        if value and name.lower() in ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")
    )
    if not proxies:
        return ok("proxies", "none set")
    spared = {
        part.strip()
        for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")
        for part in environ.get(name, "").split(",")
    }
    missing = [name for name in ("localhost", "127.0.0.1", hostname) if name not in spared]
    if missing and "*" not in spared:
        return warning(
            "proxies",
            f"{', '.join(proxies)} set, and no_proxy does not contain {', '.join(missing)}: "
            "jax.distributed.initialize can hang",
            f"export no_proxy=localhost,127.0.0.1,{hostname}${{no_proxy:+,$no_proxy}}",
        )
    return ok("proxies", f"{', '.join(proxies)} set; no_proxy excludes this host")


def check_key(path: str, file: job_key.JobKey, libssl_problem: str, libssl: str) -> Finding:
    """Between hosts the engine needs a key and OpenSSL."""
    if not path:
        return ok("key file", f"{job_key.VARIABLE} not set: between hosts gloo is used")
    if file.problem:
        return warning("key file", file.problem, file.fix)
    if libssl_problem:
        return warning(
            "key file",
            f"{path} can be used, but the engine needs OpenSSL between hosts: {libssl_problem}",
            openssl.INSTALL,
        )
    return ok("key file", f"{path} can be used between hosts; {libssl} loads")


def check_ucx(
    found: tuple[str, tuple[int, int, int]] | None, wanted: bool, all_networks: bool
) -> Finding:
    """`--transport ucx` needs UCX; without it, its absence is no problem.

    ``all_networks``: a version that may crash with several network interfaces would get all.
    """
    name = "UCX"
    if found is None:
        absent = "not found"
        if wanted:
            return problem(name, f"{absent}, and LOCKSTEP_TRANSPORT=ucx needs it", ucx.INSTALL)
        return ok(name, f"{absent} (only --transport ucx needs it)")
    library, version = found
    text = f"{'.'.join(map(str, version))} in {library}"
    if version[:2] < ucx.MIN_VERSION or version[0] != ucx.MIN_VERSION[0]:
        least = ".".join(map(str, ucx.MIN_VERSION))
        old = f"{text}: --transport ucx needs {least} or newer, of version 1"
        return (problem if wanted else warning)(name, old, ucx.INSTALL)
    if wanted and version[:2] < ucx.SEVERAL_NETWORKS and all_networks:
        crashes = f"{text} can crash when it uses several network interfaces with TCP"
        return warning(name, crashes, f"set {ucx.DEVICES_VARIABLE} to one, or {ucx.INSTALL_NEW}")
    return ok(name, f"{text}, for --transport ucx")


def findings() -> list[Finding]:
    facts, environ = probe(), os.environ
    key_file = environ.get(job_key.VARIABLE, "")
    return [
        check_hostname(facts),
        check_localhost(facts),
        check_ports(facts),
        check_proxies(environ, facts.hostname),
        check_key(key_file, job_key.read_key(key_file), openssl.problem(), openssl.version()),
        check_ucx(
            ucx.found(environ.get(ucx.LIBRARY_VARIABLE)),
            environ.get(ucx.TRANSPORT_VARIABLE) == "ucx",
            ucx.has_rdma_device() and ucx.DEVICES_VARIABLE not in environ,
        ),
    ]
