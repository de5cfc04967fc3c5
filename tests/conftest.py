"""For every test: lockstep is imported before any test module can import jax."""

import lockstep  # noqa: F401
