"""The checks of a host's GPUs, beside what is known of the others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep._finding import Finding, problem, warning
from lockstep.hosts.checks.host_findings import most
from lockstep.hosts.checks.request import HostState, Request, listed


def check(host: HostState, hosts: Sequence[HostState], request: Request) -> list[Finding]:
    """Empty where the host has no GPUs of NVIDIA, or the job does not use them."""
    if not host.facts.get("gpus"):
        return []
    # Late imports: only hosts with GPUs need them.
    from lockstep.nccl import gpu_checks
    from lockstep.nccl.devices import GpuFacts

    try:
        known = {e.label: GpuFacts.from_json(e.facts["gpus"]) for e in hosts if e.facts.get("gpus")}
    except (TypeError, ValueError, LookupError) as error:
        return [problem("GPUs", f"the agent's facts cannot be read: {error!r}", "see its version")]
    own = known[host.label]
    found = gpu_checks.findings(own, len(hosts) > 1)
    if own.problem or len(known) < 2:
        return found
    readable = {label: facts for label, facts in known.items() if not facts.problem}
    nccl = f"nvidia-nccl-cu{(gpu_checks.cuda_of(own.packages) or [13])[-1]}"
    compared: list[tuple[str, Callable[[GpuFacts], str], Callable[[str], str], bool]] = [
        ("NCCL", gpu_checks.nccl_of, lambda common: f"pip install {nccl}=={common}", True),
        ("plug-in of JAX", gpu_checks.plugins, _install, True),
        ("driver", lambda facts: facts.driver, lambda _: "install the same on all hosts", False),
        (
            "GPUs",
            gpu_checks.named,
            lambda _: "take hosts with the same GPUs: the slowest sets the pace",
            False,
        ),
    ]
    for name, value, fix, is_problem in compared:
        values = {label: value(facts) for label, facts in readable.items()}
        common, others = most(values)
        if values[host.label] != common:
            what = f"{values[host.label] or 'none'}, but {common or 'none'} on {listed(others)}"
            there = host.there(request, fix(common)) if is_problem else fix(common)
            found.append((problem if is_problem else warning)(name, what, there))
    return found


def _install(plugins: str) -> str:
    """How to have these plug-ins, each with its part that has the compiler."""
    return f"pip install {plugins} {plugins.replace('-plugin', '-pjrt')}"
