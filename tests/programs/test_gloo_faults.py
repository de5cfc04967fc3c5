"""The warning of a reduce-scatter that gloo can compute wrong."""

from __future__ import annotations

import jaxlib.version
import pytest

from lockstep._jax_compat.versions import release
from lockstep.programs import gloo_faults
from support import assert_unsaid, run_lockstep

LINE = "  %reduce-scatter.1 = {} reduce-scatter(%p), channel_id=1, to_apply=%add"


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f64[1024,2]{1,0}", 4 * 8 * 2048),
        ("bf16[6]{0}", 4 * 12),
        ("(c128[2]{0}, f8e4m3fn[3]{0})", 4 * (32 + 3)),
        ("f32[]", 4 * 4),
    ],
)
def test_the_bytes_of_a_reduce_scatter(shape: str, size: int) -> None:
    text = f"HloModule jit_f\nENTRY main {{\n  %p = f32[8]{{0}} parameter(0)\n{LINE.format(shape)}"
    assert gloo_faults.reduce_scatter_bytes(text, 4) == size


def test_other_programs_have_none() -> None:
    assert gloo_faults.reduce_scatter_bytes("  %all-reduce = f32[8] all-reduce(%p)", 4) == 0


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
scatter = jax.jit(jax.shard_map(lambda x: lax.psum_scatter(x, "x", tiled=True), mesh=mesh, in_specs=P("x"), out_specs=P("x")))
for size in (1 << 10, 1 << 18):
    x = jax.make_array_from_callback((2 * size,), NamedSharding(mesh, P("x")), lambda i: np.ones(size, np.float32))
    assert (np.asarray(scatter(x).addressable_data(0)) == 2).all()
"""  # noqa: E501


@pytest.mark.full
def test_a_large_one_is_told_once_over_gloo_where_it_can_be_wrong() -> None:
    result = run_lockstep(["--collectives", "gloo"], PROGRAM, d=1, timeout=90, forked=True)
    if release(jaxlib.version.__version__) >= (0, 12):
        assert_unsaid("reduce-scatter", result.stdout + result.stderr)
        return
    [line] = [line for line in result.stderr.splitlines() if "reduce-scatter" in line]
    assert line.startswith("[0] lockstep: warning: "), result
    assert "program.py:11) has a reduce-scatter of up to 1 MB a device over gloo" in line
