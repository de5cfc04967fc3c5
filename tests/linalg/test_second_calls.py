"""A call outside of `jax.jit`, the second with the same shapes, compiles nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import full, mesh, positive, put

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "slogdet": lambda a, b: la.slogdet(a),
    "det": lambda a, b: la.det(a),
    "inv": lambda a, b: la.inv(a),
    "solve": lambda a, b: la.solve(a, b),
    "solve, Hermitian": lambda a, b: la.solve(a, b, assume_a="her"),
    "lu_solve": lambda a, b: la.lu_solve(la.lu_factor(a), b),
    "potrs": lambda a, b: la.potrs(a, b, return_logdet=True),
    "cho_solve": lambda a, b: la.cho_solve(la.cho_factor(a), b),
    "qr": lambda a, b: la.qr(a),
    "lstsq": lambda a, b: la.lstsq(a, b),
    "eigh": lambda a, b: la.eigh(a),
    "eigvalsh": lambda a, b: la.eigvalsh(a),
    "svd": lambda a, b: la.svd(a),
    "cond": lambda a, b: la.cond(a),
    "pinv": lambda a, b: la.pinv(a),
    "polar": lambda a, b: la.polar(a),
}


@sample("name", sorted(CALLS), sorted(CALLS).index("slogdet"))
def test_a_second_call_compiles_nothing(name: str) -> None:
    over = mesh((2,))
    a, b = put(positive(12, np.float64), over, P("x")), put(full((12, 2), np.float64), over, P("x"))
    jax.block_until_ready(CALLS[name](a, b))
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(CALLS[name](a, b))
        assert not compiled
        jax.block_until_ready(jax.jit(lambda b: b + 1)(b))  # one that is new
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
