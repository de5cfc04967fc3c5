"""Judgement on names, ports, proxies and keys, from made-up facts; the probes, for real."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable

import pytest

from doctor.judged import assert_judged
from lockstep._finding import Finding
from lockstep.doctor import network
from lockstep.job.job_key import JobKey

GOOD = network.NetworkFacts(
    hostname="node7",
    addresses=("10.0.0.7",),
    localhost=("::1", "127.0.0.1"),
    loopback_error="",
    ipv6=True,
    ports=(32768, 60999),
)


def test_a_good_network_is_ok() -> None:
    for check in (network.check_hostname, network.check_localhost, network.check_ports):
        assert check(GOOD).status == "ok"


@pytest.mark.parametrize(
    ("check", "change", "status", "found", "fix"),
    [
        (network.check_hostname, {"addresses": ()}, "warning", "not resolve", "127.0.1.1 node7"),
        (
            network.check_hostname,
            {"addresses": ("127.0.1.1",)},
            "warning",
            "other hosts cannot reach",
            "/etc/hosts",
        ),
        (network.check_hostname, {"addresses": ("127.0.1.1", "10.0.0.7")}, "ok", "10.0.0.7", ""),
        (network.check_hostname, {"addresses": ("fe80::1%eth0",)}, "ok", "fe80", ""),
        (network.check_localhost, {"localhost": ()}, "problem", "nothing", "localhost"),
        (network.check_localhost, {"localhost": ("8.8.8.8",)}, "problem", "8.8.8.8", "/etc/hosts"),
        (
            network.check_ports,
            {"loopback_error": "[Errno 99] Cannot assign"},
            "problem",
            "Cannot assign",
            "ip link set lo up",
        ),
        (network.check_ports, {"ipv6": False}, "ok", "IPv6 off (not needed)", ""),
        (network.check_ports, {"ports": (60000, 60100)}, "warning", "60000 to 60100", "sysctl"),
        (network.check_ports, {"ports": None}, "ok", "opens", ""),
    ],
)
def test_what_is_not_as_it_should_be(
    check: Callable[[network.NetworkFacts], Finding],
    change: dict[str, object],
    status: str,
    found: str,
    fix: str,
) -> None:
    facts = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]  # any field
    assert_judged(check(facts), status, found, fix)


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({}, "ok"),
        ({"http_proxy": ""}, "ok"),
        ({"http_proxy": "http://proxy:3128"}, "warning"),
        ({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "localhost"}, "warning"),
        ({"http_proxy": "http://proxy", "no_proxy": "localhost, 127.0.0.1,node7"}, "ok"),
        ({"http_proxy": "http://proxy", "NO_PROXY": "*"}, "ok"),
    ],
)
def test_proxies_must_spare_this_host(environ: dict[str, str], status: str) -> None:
    assert network.check_proxies(environ, "node7").status == status


def test_the_mend_for_proxies_names_this_host() -> None:
    finding = network.check_proxies({"http_proxy": "http://proxy:3128"}, "node7")
    assert "http_proxy" in finding.found
    assert "node7" in finding.found
    assert finding.fix.startswith("export no_proxy=localhost,127.0.0.1,node7")


@pytest.mark.parametrize(
    ("path", "file", "libssl", "status", "found", "fix"),
    [
        ("", JobKey(), "", "ok", "not set", ""),
        ("/k", JobKey(b"x" * 32), "", "ok", "OpenSSL 3.5.0 loads", ""),
        ("/k", JobKey(None, "bad mode.", "chmod 600 /k"), "", "warning", "bad mode", "chmod"),
        ("/k", JobKey(b"x" * 32), "no libssl.so.3", "warning", "no libssl.so.3", "openssl"),
    ],
)
def test_the_key_for_other_hosts(
    path: str, file: JobKey, libssl: str, status: str, found: str, fix: str
) -> None:
    assert_judged(network.check_key(path, file, libssl, "OpenSSL 3.5.0"), status, found, fix)


def test_loopback_is_reached() -> None:
    assert network.probe_loopback(socket.AF_INET, "127.0.0.1") == ""


def test_a_port_that_cannot_be_opened_gives_the_reason() -> None:
    # 192.0.2.0/24 is reserved for documentation: no machine has such an address.
    assert "assign" in network.probe_loopback(socket.AF_INET, "192.0.2.1")


@pytest.mark.parametrize(
    ("version", "wanted", "all_networks", "status", "words"),
    [
        (None, False, False, "ok", "not found (only --transport ucx needs it)"),
        (None, True, False, "problem", "not found, and LOCKSTEP_TRANSPORT=ucx needs it"),
        ((1, 14, 1), True, True, "ok", "1.14.1 in libucp.so.0, for --transport ucx"),
        ((1, 13, 1), True, False, "ok", "1.13.1 in libucp.so.0, for --transport ucx"),
        ((1, 13, 1), False, True, "ok", "1.13.1 in libucp.so.0, for --transport ucx"),
        ((1, 13, 1), True, True, "warning", "1.13.1 in libucp.so.0 can crash"),
        ((1, 9, 0), False, False, "warning", "1.9.0 in libucp.so.0: --transport ucx"),
        ((2, 0, 0), True, False, "problem", "needs 1.12 or newer, of version 1"),
    ],
)
def test_ucx(
    version: tuple[int, int, int] | None,
    wanted: bool,
    all_networks: bool,
    status: str,
    words: str,
) -> None:
    found = version and ("libucp.so.0", version)
    assert_judged(network.check_ucx(found, wanted, all_networks), status, words)
