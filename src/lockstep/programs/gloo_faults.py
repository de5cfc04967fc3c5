"""What gloo computes wrong without an error, seen in a compiled program. Pure."""

from __future__ import annotations

from lockstep.hlo.text import arrays

MIN_BYTES = 1 << 20
"""Less is in the buffers of the sockets before gloo overwrites it; up to 8 MiB none was wrong."""
_SCATTER = " reduce-scatter("


def reduce_scatter_bytes(text: str, devices: int) -> int:
    """The bytes that the largest reduce-scatter of a program takes from each device; 0: none.

    ``text``: of the compiled program, which runs on so many ``devices``.
    """
    if _SCATTER not in text:
        return 0
    heads = (line.partition(_SCATTER)[0] for line in text.splitlines() if _SCATTER in line)
    # One over fewer devices takes less.
    taken = (sum(array.bytes for array in arrays(head.partition(" = ")[2])) for head in heads)
    return devices * max(taken, default=0)


def warning(title: str, size: int, jaxlib: str) -> str:
    """The line for a program called ``title``, whose reduce-scatter takes ``size`` bytes."""
    return (
        f"warning: {title} has a reduce-scatter of up to {size / 1e6:.0f} MB a device "
        f"over gloo. With jaxlib {jaxlib} its result can be wrong, without an error, where a "
        "process sends slowly (jax-ml/jax#40830). Use the engine, which needs a key on several "
        "hosts, or jax 0.12 or later."
    )
