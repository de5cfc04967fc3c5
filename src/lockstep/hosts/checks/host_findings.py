"""The checks of one host, beside what is known of the others. Pure.

Each gets the host, all hosts that were reached, and the request; None: there is nothing to check.
"""

from __future__ import annotations

import collections
import os
import shlex
from collections.abc import Mapping, Sequence

from lockstep._finding import Finding, ok, problem, warning
from lockstep._words import counted, format_size
from lockstep.hosts.checks.address_choice import shown
from lockstep.hosts.checks.request import HostState, Request, listed
from lockstep.hosts.checks.ssh_errors import Failure, same_lockstep
from lockstep.system import oom
from lockstep.system.interfaces import is_loopback

MIN_DISK = 16 << 20
"""The records and crash files of a run."""
LITTLE_DISK = 256 << 20
FILES_OF_PROCESS = 512
"""What a process of a small job opens; more processes need more (`lockstep.system.fd_limit`)."""
FILES_PER_PEER = 3
CLOCK_SECONDS = 5.0


def most(values: Mapping[str, str]) -> tuple[str, list[str]]:
    """The value that most hosts have (of the first host in doubt), and the labels of these."""
    common = collections.Counter(values.values()).most_common(1)[0][0]
    return common, [label for label, value in values.items() if value == common]


def check_lockstep(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    there = host.facts["versions"]["lockstep"]
    where = f"{there}, {host.facts['executable']}"
    return ok("Lockstep", where)


def other_version(host: HostState, version: str, request: Request) -> Failure:
    """An agent of another version may say other things: it is asked nothing."""
    return Failure(
        "Lockstep",
        f"{version}, but this machine has {request.version}",
        same_lockstep(
            request.version, host.there(request, f"{shlex.quote(request.python)} -m pip install")
        ),
    )


def check_package(
    package: str, host: HostState, hosts: Sequence[HostState], request: Request
) -> Finding:
    versions = {each.label: each.facts["versions"][package] for each in hosts}
    own, (common, others) = versions[host.label], most(versions)
    if own == common and own:
        return ok(package, own)
    install = f"{host.facts['executable']} -m pip install"
    if not common:
        return problem(package, "not installed on any host", host.there(request, f"{install} jax"))
    return problem(
        package,
        f"{own or 'not installed'}, but {common} on {listed(others)}",
        host.there(request, f"{install} {package}=={common}"),
    )


def check_python(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    own = host.facts["python"]
    minor = {each.label: each.facts["python"].rpartition(".")[0] for each in hosts}
    common, others = most(minor)
    if minor[host.label] == common:
        return ok("Python", own)
    return warning(
        "Python",
        f"{own}, but {common} on {listed(others)}: what one host pickles another may not read",
        "make the virtual environments with the same Python, or name one with --python",
    )


def check_directory(
    host: HostState, hosts: Sequence[HostState], request: Request
) -> Finding | None:
    if not request.directory:
        return None
    if wrong := host.facts["directory_problem"]:
        copy = host.copied(request, f"{request.directory}/")
        other = "--chdir DIR with a directory that all hosts have"
        fix = f"{copy}; or {other}" if copy else other
        return problem("directory", f"{request.directory} {wrong}", fix)
    return ok("directory", request.directory)


def check_program(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding | None:
    own = host.facts["program"]
    if not own or (host.facts["directory_problem"] and not os.path.isabs(request.program[0])):
        return None  # said by the directory
    if own["problem"]:
        what = f"{own['path']}: {own['problem']}"
        if all(each.facts["program"]["problem"] for each in hosts):
            return problem(
                "program", f"{what}, on all hosts", "check its name, or give --chdir DIR"
            )
        return problem("program", what, _copy(own["path"], host, request))
    hashes = {e.label: e.facts["program"]["sha256"] for e in hosts if e.facts["program"]["sha256"]}
    common, others = most(hashes)
    if own["sha256"] != common:
        what = f"{own['path']} is another file than on {listed(others)}"
        return problem("program", what, _copy(own["path"], host, request))
    return ok("program", own["path"])


def _copy(path: str, host: HostState, request: Request) -> str:
    if request.program[0] == "-m":
        return f"install the module on {host.label}, or --chdir DIR with the directory that has it"
    copy = host.copied(request, path)
    return copy or f"copy the file of the other hosts to {path}"


def check_disk(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    disk = host.facts["run_dir"]
    path, free = disk["path"], disk["free"]
    name = "disk"
    fix = (
        f"make room: {host.there(request, f'df -h {shlex.quote(path)}')}; or set TMPDIR on "
        f"{host.label} to a directory on another disk"
    )
    if disk["problem"]:
        what = f"no file of a run can be written to {path} (TMPDIR): {disk['problem']}"
        return problem(name, what, fix)
    left = f"{format_size(free)} free in {path} (TMPDIR)"
    if free < MIN_DISK:
        return problem(name, f"{left}: a run needs {format_size(MIN_DISK)}", fix)
    if free < LITTLE_DISK:
        return warning(name, f"{left}: little room for the records of a failed run", fix)
    return ok(name, left)


def check_memory(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    free, needed = host.facts["memory"], host.processes * (oom.MB_OF_PROCESS << 20)
    found = f"{format_size(free)} available"
    if free and free < needed:
        return warning(
            "memory",
            f"{found}; {counted(host.processes, 'process')} with jax need about "
            f"{format_size(needed)} before their arrays",
            f"start fewer processes on {host.label}, or end what else runs there",
        )
    return ok("memory", found)


def check_files(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    limit = host.facts["open_files"]
    needed = FILES_OF_PROCESS + FILES_PER_PEER * (sum(e.processes for e in hosts) + len(hosts))
    if 0 <= limit < needed:
        return problem(
            "open files",
            f"at most {limit} in a process; one of this job needs {needed}",
            f"raise it for your user in /etc/security/limits.conf on {host.label}: * hard nofile "
            f"{needed}",
        )
    return ok("open files", "no limit" if limit < 0 else f"up to {limit} in a process")


def check_clock(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    if abs(host.clock_ahead) <= CLOCK_SECONDS:
        return ok("clock", "agrees with this machine's")
    direction = "ahead of" if host.clock_ahead > 0 else "behind"
    return warning(
        "clock",
        f"{abs(host.clock_ahead):.0f} s {direction} this machine's: files that hosts share get "
        "wrong times",
        host.there(request, "sudo timedatectl set-ntp true"),
    )


def check_host_name(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding:
    """gloo alone binds to what the host name resolves to; the engine gets addresses."""
    name, addresses = host.facts["host_name"], host.facts["resolves"]
    useless = not addresses or all(map(is_loopback, addresses))
    found = f"{name} is {', '.join(addresses)}" if addresses else f"{name} does not resolve"
    if useless and len(hosts) > 1 and request.collectives == "gloo":
        return problem(
            "host name",
            f"{found}, and --collectives gloo listens there: other hosts cannot reach it",
            f"in /etc/hosts of {host.label}: {host.address or 'its address'} {name}; or leave out "
            "--collectives gloo",
        )
    note = f"{found}: not used, the job gets addresses" if useless and len(hosts) > 1 else found
    return ok("host name", note)


def check_port(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding | None:
    if not host.listening.get("port_problem"):
        return None
    show = host.there(request, f"ss -ltnp sport = :{request.port}")
    return problem(
        "port",
        f"{request.port} of {host.address} is not free: {host.listening['port_problem']}",
        f"{show} shows the process; end it, or take another port",
    )


def check_address(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding | None:
    if host.choice.problem:
        return problem(
            "address", host.choice.problem, "name another with --interface NAME or NETWORK/BITS"
        )
    if not host.listening:
        return None
    if host.listening["problem"]:
        return problem(
            "address",
            f"{host.address or 'none'}: {host.listening['problem']}; it has {shown(host.facts)}",
            "name a network that joins all hosts with --interface NAME or NETWORK/BITS",
        )
    by = next((i["name"] for i in host.facts["interfaces"] if i["address"] == host.address), "")
    return ok("address", f"{host.address}{f' ({by})' if by else ''}")
