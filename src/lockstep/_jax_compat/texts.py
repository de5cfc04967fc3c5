"""What jaxlib and JAX put around the texts of errors."""

from __future__ import annotations

import re

OF_THE_ENGINE = "MPI error: lockstep: "
"""Before the engine's own text: jaxlib takes the engine for an MPI."""
ENGINE_ERROR = (
    rf"[A-Z_]+: (?:Buffer Definition Event: )*{OF_THE_ENGINE}(?P<again>earlier failure: )?"
)
"""A pattern: how the message of an engine's error begins, as XLA and JAX pass it on.

jaxlib 0.8 adds an event where an array is awaited whose program has failed."""
NOTE_OF_FRAMES = re.compile(
    r"^-{20}\nFor simplicity, JAX has removed its internal frames .*\n?", re.MULTILINE
)
