"""Judges what is known of the GPUs of one host: what NCCL and JAX need of them. Pure.

Each check gives a `Finding`; None: there is nothing to check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep._finding import Finding, ok, problem, warning
from lockstep._words import counted, format_size, ranges
from lockstep.nccl import known_hangs, library, visible
from lockstep.nccl.devices import GpuFacts

DRIVERS = {12: (525, 60), 13: (580, 0)}
"""The oldest driver for each CUDA. Source: NVIDIA, CUDA Toolkit release notes, minor versions."""
CAPABILITIES = {12: (5, 2), 13: (7, 5)}
"""The oldest GPUs that JAX supports with each CUDA. Source: JAX, installation."""
RAS_JSON = (2, 28, 7)
MUCH_USED = 1 << 30
NEEDED_SHM = 1 << 30
"""What NVIDIA gives to containers. Source: NCCL user guide, troubleshooting, shared memory."""
_BUSY = 5


def cuda_of(packages: Mapping[str, str]) -> list[int]:
    """The CUDA versions of JAX's installed plug-ins."""
    found = {int(name[8:10]) for name in packages if name.startswith("jax-cuda")}
    return sorted(found)


def plugins(facts: GpuFacts) -> str:
    """JAX's plug-ins as pip names them, ``jax-cuda13-plugin==0.11.2``."""
    found = sorted(facts.packages.items())
    return " ".join(f"{name}=={version}" for name, version in found if name.endswith("-plugin"))


def nccl_of(facts: GpuFacts) -> str:
    """The version of the NCCL that JAX loads; "": not known."""
    if facts.other_nccl:
        return facts.other_nccl.partition(".so.")[2]
    wanted = [f"nvidia-nccl-cu{version}" for version in cuda_of(facts.packages)]
    return next((facts.packages[name] for name in wanted if name in facts.packages), "")


def named(facts: GpuFacts) -> str:
    """``8 x NVIDIA H200``."""
    names = [gpu.name for gpu in facts.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def shown(facts: GpuFacts) -> list[int]:
    """The GPUs that a program sees, by their numbers; all where MIG devices are named."""
    names = visible.shown("cuda", facts.environ, len(facts.gpus))
    if names is None or visible.migs(facts.environ):
        return [*range(len(facts.gpus))]
    uuids = {number: gpu.uuid for number, gpu in enumerate(facts.gpus)}
    return [
        number
        for name in names
        for number, uuid in uuids.items()
        if name == str(number) or (uuid and uuid.startswith(name))
    ]


def check_driver(facts: GpuFacts) -> Finding:
    """Driver, CUDA and JAX's plug-in fit each other, and the GPUs."""
    name = "driver"
    if facts.is_late:
        return warning(name, facts.problem, "sudo nvidia-smi -pm 1 keeps it loaded")
    if facts.problem:
        return problem(name, facts.problem, "install NVIDIA's driver, and try: nvidia-smi")
    plugins = {n: v for n, v in facts.packages.items() if n.endswith("-plugin")}
    shown = ", ".join(f"{n} {v}" for n, v in plugins.items()) or "no plug-in of JAX"
    found = f"{facts.driver}, for CUDA up to {'.'.join(map(str, facts.cuda)) or '?'}; {shown}"
    used = cuda_of(facts.packages)
    if len(used) > 1:
        extra = f"jax-cuda{used[0]}-plugin jax-cuda{used[0]}-pjrt"
        return warning(name, f"{found}: JAX loads both", f"pip uninstall {extra}")
    for cuda in used:
        is_old = known_hangs.numbers(facts.driver)[:2] < DRIVERS.get(cuda, (0, 0))
        if is_old and facts.cuda < (cuda, 0):  # else NVIDIA's package cuda-compat is there
            oldest = ".".join(map(str, DRIVERS[cuda]))
            other = "" if cuda == 12 else ", or pip install 'jax[cuda12]'"
            fix = f"install a newer driver{other}"
            return problem(name, f"{found}: CUDA {cuda} needs a driver from {oldest} on", fix)
        if old := [g.name for g in facts.gpus if () < g.capability < CAPABILITIES.get(cuda, ())]:
            fix = "pip install 'jax[cuda12]', which supports older GPUs, or use others"
            return problem(name, f"{found}: {old[0]} is too old for CUDA {cuda}", fix)
        if mixed := _mixed(facts.packages, cuda):
            return problem(
                name, f"{found}, but {mixed}", f"pip install --upgrade 'jax[cuda{cuda}]'"
            )
    return ok(name, found)


def _mixed(packages: Mapping[str, str], cuda: int) -> str:
    """A part of JAX that has another version than its plug-in."""
    own = packages.get(f"jax-cuda{cuda}-plugin", "")
    others = {name: packages.get(name, own) for name in (f"jax-cuda{cuda}-pjrt", "jaxlib")}
    return next((f"{name} is {version}" for name, version in others.items() if version != own), "")


def check_nccl(facts: GpuFacts) -> Finding | None:
    """The version of NCCL, and what it is known for."""
    if not facts.gpus or not cuda_of(facts.packages):
        return None
    name, version = "NCCL", nccl_of(facts)
    package = f"nvidia-nccl-cu{cuda_of(facts.packages)[-1]}"
    newer = f"pip install --upgrade {package}"
    if facts.other_nccl:
        newer = f"unset LD_LIBRARY_PATH, which has {facts.other_nccl}; {newer}"
    if not version:
        return warning(name, "not installed: programs on several GPUs fail", newer)
    if hangs := known_hangs.of(version, facts.machine, " ".join(g.name for g in facts.gpus)):
        first = hangs[0]
        more = f", and {len(hangs) - 1} more" if hangs[1:] else ""
        fixed = ".".join(map(str, first.before))
        what = f"{version} may hang: {first.what} (fixed in {fixed}, {first.source}){more}"
        if not library.is_loaded_by(version):
            what += "; Lockstep records no collectives of it, but launches"
        return warning(name, what, newer)
    note = "" if known_hangs.numbers(version) >= RAS_JSON else " (without RAS in JSON: from 2.28.7)"
    return ok(name, f"{version}{note}")


def check_use(facts: GpuFacts) -> Finding | None:
    """The GPUs that a program sees are free."""
    if not facts.gpus:
        return None
    name = "use of GPUs"
    own = {number: facts.gpus[number] for number in shown(facts)}
    if not own:
        return warning(name, f"{visible.settings(facts.environ)} hides all", "unset it")
    if refused := [n for n, gpu in own.items() if "prohibited" in gpu.mode.lower()]:
        what = f"GPU {ranges(refused)}: compute mode Prohibited"
        return problem(name, what, f"sudo nvidia-smi -i {refused[0]} -c DEFAULT")
    used = [n for n, g in own.items() if g.processes or g.used >= MUCH_USED or g.busy > _BUSY]
    if not used:
        return ok(name, f"{counted(len(own), 'GPU')} idle")
    first = own[used[0]]
    pids = f" by process {ranges(first.processes)}" if first.processes else ""
    memory = f"{format_size(first.used)} of {format_size(first.memory)}"
    what = f"GPU {ranges(used)} used by others: {memory} of GPU {used[0]}{pids}, {first.busy}% busy"
    return warning(name, what, "end what runs there (nvidia-smi), or hide it: CUDA_VISIBLE_DEVICES")


def check_peer_access(facts: GpuFacts) -> Finding | None:
    """Each GPU reaches the memory of the others."""
    own = shown(facts)
    if len(own) < 2:
        return None
    name = "peer access"
    apart = [pair for pair in facts.apart if {*pair} <= {*own}]
    if not apart:
        return ok(name, "each GPU reaches the memory of the others")
    pairs = ", ".join(f"{a}-{b}" for a, b in apart[:3]) + ", ..." * (len(apart) > 3)
    return warning(
        name,
        f"not between GPUs {pairs}: NCCL copies through the host's memory, which is slower",
        "nvidia-smi topo -p2p r; turn off ACS in the BIOS, or use GPUs below one switch",
    )


def check_shared_memory(facts: GpuFacts) -> Finding | None:
    """NCCL's processes of one host meet in /dev/shm, of which a container has 64 MiB."""
    if len(shown(facts)) < 2 or not facts.shared_memory:
        return None
    found = f"{format_size(facts.shared_memory)} in /dev/shm"
    if facts.shared_memory < NEEDED_SHM:
        fix = "docker run --shm-size=1g --ulimit memlock=-1; Kubernetes: emptyDir, medium: Memory"
        return warning("/dev/shm", f"{found}: NCCL may need more", fix)
    return ok("/dev/shm", found)


def check_network(facts: GpuFacts, several: bool = False) -> Finding | None:
    """The network over which NCCL's processes find each other; ``several``: on several hosts."""
    if not facts.gpus:
        return None
    name, chosen = "NCCL's network", network_of(facts.interfaces, facts.environ)
    named = facts.environ.get("NCCL_SOCKET_IFNAME", "")
    there = ", ".join(dict.fromkeys(each for each, _ in facts.interfaces))
    if not chosen:
        what = f"none: NCCL_SOCKET_IFNAME={named} fits none of {there}"
        return problem(name, what, "unset NCCL_SOCKET_IFNAME, or name one of these")
    interface, address = chosen[0]
    found = f"{interface} ({address})" + (f", by NCCL_SOCKET_IFNAME={named}" if named else "")
    inside = ("lo", "docker", "virbr")
    if several and interface.startswith(inside):
        what = f"{found}, where no other host reaches it"
        return problem(name, what, "name one with --interface, which NCCL_SOCKET_IFNAME follows")
    return ok(name, found)


def network_of(
    there: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> list[tuple[str, str]]:
    """The interfaces that NCCL takes. Source: NCCL, src/misc/socket.cc, ncclFindInterfaces."""
    named = environ.get("NCCL_SOCKET_IFNAME", "")
    rules = [named] if len(named) > 1 else ["ib", "^docker,lo,virbr", "docker", "lo", "virbr"]
    found = ([each for each in there if _fits(each[0], rule)] for rule in rules)
    return next(filter(None, found), [])


def _fits(interface: str, rule: str) -> bool:
    is_none_of, rule = rule.startswith("^"), rule.removeprefix("^")
    is_exact, rule = rule.startswith("="), rule.removeprefix("=")
    names = [part.partition(":")[0] for part in rule.split(",") if part]
    fits = interface in names if is_exact else interface.startswith(tuple(names))
    return fits != is_none_of


CHECKS = (check_driver, check_nccl, check_use, check_peer_access, check_shared_memory)


def findings(facts: GpuFacts, several: bool = False) -> list[Finding]:
    """All of one host."""
    found = [*(check(facts) for check in CHECKS), check_network(facts, several)]
    return [each for each in found if each]
