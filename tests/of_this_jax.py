"""What the installed jaxlib makes possible; tests expect it where it is there, and only there."""

from __future__ import annotations

import jaxlib
import pytest

VERSION = jaxlib.version.__version_info__

EXECUTIONS_ARE_NUMBERED = VERSION >= (0, 9)
"""Without the numbers, errors have no lines, and programs that look alike are not compared."""

MUTUAL_TLS = VERSION >= (0, 11, 2)
"""JAX's coordination service takes certificates, which Lockstep makes from the job's key."""

GLOO_REDUCE_SCATTER = VERSION < (0, 12)
"""gloo's own algorithm, which gives wrong numbers (jax-ml/jax#40830)."""

FLOAT16_PASS = VERSION >= (0, 10, 2)

needs_numbers = pytest.mark.skipif(
    not EXECUTIONS_ARE_NUMBERED, reason="jaxlib before 0.9 does not number executions"
)
needs_float16_pass = pytest.mark.skipif(
    not FLOAT16_PASS, reason="jax before 0.10.2 has no place for the float16 pass"
)


def where_numbered(text: str) -> str:
    """Words that need a program's number: those of its line, and its name."""
    return text if EXECUTIONS_ARE_NUMBERED else ""


_WARNINGS = (
    " Using experimental recoverable task ",  # jaxlib before 0.9, in each process that joins a job
    "lockstep: jaxlib 0.11.2: XLA crashes where ",
)


def without_warnings(text: str) -> list[str]:
    """The lines but for those that this version of jaxlib makes of every job."""
    return [line for line in text.splitlines() if not any(each in line for each in _WARNINGS)]
