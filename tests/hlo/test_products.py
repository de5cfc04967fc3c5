"""The flops of matrix products and convolutions, with the loops around them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.hlo import products

WRITTEN = """\
HloModule jit_f

%product (p0: f32[2,8,4], p1: f32[2,4,16]) -> f32[2,8,16] {
  %p0 = f32[2,8,4]{2,1,0} parameter(0)
  %p1 = f32[2,4,16]{2,1,0} parameter(1)
  ROOT %dot = f32[2,8,16]{2,1,0} dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

%body (s: (s32[], f32[2,8,4], f32[2,4,16])) -> (s32[], f32[2,8,4], f32[2,4,16]) {
  %s = (s32[], f32[2,8,4]{2,1,0}, f32[2,4,16]{2,1,0}) parameter(0)
  %a = f32[2,8,4]{2,1,0} get-tuple-element(%s), index=1
  %b = f32[2,4,16]{2,1,0} get-tuple-element(%s), index=2
  %fused = f32[2,8,16]{2,1,0} fusion(%a, %b), kind=kOutput, calls=%product
  ROOT %next = (s32[], f32[2,8,4]{2,1,0}, f32[2,4,16]{2,1,0}) tuple(%s)
}

%never (u: (s32[], f32[2,8,4], f32[2,4,16])) -> pred[] {
  %u = (s32[], f32[2,8,4]{2,1,0}, f32[2,4,16]{2,1,0}) parameter(0)
  ROOT %no = pred[] constant(false)
}

ENTRY %main (x: f32[2,8,4]) -> f32[] {
  %x = f32[2,8,4]{2,1,0} parameter(0)
  %known = (s32[], f32[2,8,4]{2,1,0}, f32[2,4,16]{2,1,0}) while(%x), condition=%never, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %unknown = (s32[], f32[2,8,4]{2,1,0}, f32[2,4,16]{2,1,0}) while(%x), condition=%never, body=%body
  ROOT %zero = f32[] constant(0)
}
"""  # noqa: E501


def test_a_loop_counts_as_often_as_it_runs_and_one_of_unknown_length_once() -> None:
    one = 2 * (2 * 8 * 16) * 4
    assert products.flops(WRITTEN) == one * 3 + one


def of(f: object, *arguments: np.ndarray) -> float:
    return products.flops(jax.jit(f).lower(*arguments).compile().as_text() or "")  # pyright: ignore


def test_products_that_the_compiler_has_made() -> None:
    x, w = np.ones((6, 8), np.float32), np.ones((8, 8), np.float32)

    def layers(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=5)[0]

    assert of(layers, x, w) == 5 * 2 * 6 * 8 * 8
    assert of(jnp.add, w, w) == 0


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_sums_over_its_kernel(groups: int) -> None:
    image, kernel = np.ones((2, 9, 9, 4), np.float32), np.ones((3, 3, 4 // groups, 6), np.float32)

    def convolve(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            image,
            kernel,
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    assert of(convolve, image, kernel) == 2 * (2 * 7 * 7 * 6) * (3 * 3 * 4 // groups)
