"""Kernels for CPUs (``liblockstep_linalg.so``), called from compiled programs through XLA's FFI.

They are optional: where the library is missing or older, or the device is no CPU, plain JAX
computes the same. The kernels are pure functions of their arguments (a few cache the latest
result), and run on the thread of the device that calls them. At most as many kernels that call the
BLAS run at once as the process has processors. Each kernel is a function here, with what it takes
and returns, so this file is long.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lockstep._errors import EngineError
from lockstep.engine import bindings

_NAMES = (
    "hemv",
    "two_products",
    "reflector",
    "correct",
    "bidiagonal_left",
    "bidiagonal_right",
    "bidiagonal_values",
    "block_reflector",
    "band_to_bidiagonal",
    "band_eigenvalues",
    "secular_roots",
    "secular_weights",
    "products",
    "subtract_products",
    "solve_right",
    "gram",
    "reflect",
    "lu_of_difference",
    "factor_panel",
    "potrf",
    "trsm",
    "getrf",
    "eliminate",
)

_OF_SCIPY = (
    ("cython_blas", "sgemm dgemm cgemm zgemm", rb"void \((char \*, ){2}(int \*, ){3}.*"),
    ("cython_blas", "ssyrk dsyrk cherk zherk", rb"void \((char \*, ){2}(int \*, ){2}.*"),
    ("cython_blas", "strsm dtrsm ctrsm ztrsm", rb"void \((char \*, ){4}int \*, int \*, .*"),
    (
        "cython_lapack",
        "spotrf dpotrf cpotrf zpotrf",
        rb"void \(char \*, int \*, \w+ \*, int \*, int \*\)",
    ),
    (
        "cython_lapack",
        "sgetrf dgetrf cgetrf zgetrf",
        rb"void \(int \*, int \*, \w+ \*, int \*, int \*, int \*\)",
    ),
    (
        "cython_lapack",
        "dbdsqr",
        rb"void \(char \*(, int \*){4}(, \w+ \*){3}(, int \*, \w+ \*){3}, int \*\)",
    ),
    (
        "cython_lapack",
        "dgbbrd",
        rb"void \(char \*(, int \*){5}, \w+ \*, int \*(, \w+ \*){3}(, int \*, \w+ \*){3}, int \*\)",
    ),
    (
        "cython_lapack",
        "zgbbrd",
        rb"void \(char \*(, int \*){5}, \w+ \*, int \*(, \w+ \*){3}(, int \*, \w+ \*){3}"
        rb", \w+ \*, int \*\)",
    ),
    (
        "cython_lapack",
        "dsbtrd zhbtrd",
        rb"void \((char \*, ){2}(int \*, ){2}\w+ \*, int \*(, \w+ \*){3}, int \*, \w+ \*"
        rb", int \*\)",
    ),
    ("cython_lapack", "dsterf", rb"void \(int \*, \w+ \*, \w+ \*, int \*\)"),
)
"""Module, routines and their signature: for f32, f64, c64 and c128, or for 64 bits alone."""


@functools.cache
def available(platform: str) -> bool:
    """Whether programs for this platform can call the kernels; registers them."""
    if platform != "cpu":
        return False
    try:
        library = ctypes.CDLL(str(bindings.kernels_path()))
        found = {name: getattr(library, f"lockstep_{name}") for name in _NAMES}
        library.lockstep_use_lapack((ctypes.c_void_p * 26)(*_lapack_of_scipy()))
    except (EngineError, OSError, AttributeError, ImportError, KeyError):
        return False
    # jaxlib refuses a version of the FFI that it does not know when a kernel is registered; before
    # there is a backend it would only remember that, and have no backend later.
    jax.devices("cpu")
    try:
        for name, function in found.items():
            capsule = jax.ffi.pycapsule(function)
            jax.ffi.register_ffi_target(f"lockstep_{name}", capsule, platform="cpu")
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _lapack_of_scipy() -> list[int]:
    """The addresses of these routines of SciPy.

    They are those that jaxlib's LAPACK calls use.
    https://docs.scipy.org/doc/scipy/reference/linalg.cython_blas.html
    """
    name_of, address_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = []
    for module, routines, signature in _OF_SCIPY:
        functions = importlib.import_module(f"scipy.linalg.{module}").__pyx_capi__
        for routine in routines.split():
            capsule = functions[routine]
            declared = name_of(capsule)
            if not re.fullmatch(signature, declared):
                text = declared.decode()
                raise ImportError(f"scipy.linalg.{module}.{routine} is {text}")
            found.append(address_of(capsule, declared))
    return found


def _call(name: str, out: Any, *arguments: jax.Array, in_place: bool = False) -> Any:
    aliases = {0: 0} if in_place else None
    call = jax.ffi.ffi_call(
        f"lockstep_{name}", out, vmap_method="sequential", input_output_aliases=aliases
    )
    return call(*arguments)


def with_derivatives_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of arrays that calls a kernel: its derivatives are those of ``plain``.

    Both take the same arguments; those by keyword are static.
    """

    def decorate(fast: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def wrapper(*arrays: jax.Array, **static: Any) -> Any:
            run = jax.custom_jvp(functools.partial(fast, **static))

            @run.defjvp
            def _(primals: Any, tangents: Any) -> Any:
                return run(*primals), jax.jvp(
                    functools.partial(plain, **static), primals, tangents
                )[1]

            return run(*arrays)

        return wrapper

    return decorate


def _like(array: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, array.dtype)


def _integers(*numbers: jax.Array | int) -> jax.Array:
    return jnp.stack([jnp.asarray(x, jnp.int32) for x in numbers])


def hemv(a: jax.Array, v: jax.Array, tile: int, top: jax.Array, me: jax.Array) -> jax.Array:
    """This device's part of the product of a Hermitian matrix with a vector, (P, R).

    The sum of all devices' parts is the product. Only what is at or below the diagonal, in the
    order of elimination, is read: each number once, for both of its places. Rows and columns before
    the local row ``top``, a multiple of ``tile``, count as zero.

    Args:
      a: (R, P, R), the local rows of device ``me``.
      v: (P, R).
    """
    return _call("hemv", _like(v, *v.shape), a, v, _integers(tile, top, me))


def two_products(
    a: jax.Array, v: jax.Array, w: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`lockstep.linalg._hermitian._two_products`, in one pass over ``a``."""
    out = _like(a, a.shape[0]), _like(a, a.shape[1]), _like(a.real)
    return tuple(_call("two_products", out, a, v, w))


def bidiagonal_left(
    a: jax.Array,
    columns: jax.Array,
    lines: jax.Array,
    left: jax.Array,
    right: jax.Array,
    s: jax.Array,
    c: jax.Array,
    me: jax.Array,
) -> tuple[jax.Array, ...]:
    """The first half of column ``c`` of superstep ``s`` of a reduction to bidiagonal form.

    Args:
      a: (R, P, R), the local columns of device ``me``, of the trailing matrix before the panel.
      columns: (width + 1, P, R), those of the panel and the next one, of the same matrix.
      lines: (width, P, R), the adjoints of its rows.
      left: (2 width, P, R), as in `lockstep.linalg._bidiagonalize.Panel`, of the columns before.
      right: as ``left``.

    Returns:
      The reflector from the left and what the row is before it, (P, R) each; this device's part of
      the products of the trailing matrix with both, (2, P, R), whose sum is wanted; beta and tau of
      the reflector, (2,).
    """
    tile = (len(columns) - 1) // columns.shape[1]
    vector = _like(columns, *columns.shape[1:])
    out = vector, vector, _like(columns, 2, *columns.shape[1:]), _like(columns, 2)
    where = _integers(tile, s, c, me)
    return tuple(_call("bidiagonal_left", out, a, columns, lines, left, right, where))


def bidiagonal_right(
    r: jax.Array,
    products: jax.Array,
    columns: jax.Array,
    left: jax.Array,
    right: jax.Array,
    s: jax.Array,
    c: jax.Array,
) -> tuple[jax.Array, ...]:
    """The other half, from the row ``r`` and the summed ``products`` of `bidiagonal_left`.

    ``left`` and ``right`` have the reflector from the left and its product already. Returns the
    reflector from the right and what it takes away, (P, R) each, and its beta and tau, (2,).
    """
    tile = (len(columns) - 1) // columns.shape[1]
    out = _like(r, *r.shape), _like(r, *r.shape), _like(r, 2)
    where = _integers(tile, s, c)
    return tuple(_call("bidiagonal_right", out, r, products, columns, left, right, where))


def bidiagonal_values(diagonal: jax.Array, right: jax.Array) -> jax.Array:
    """The singular values (n,), descending, of the bidiagonal matrix with this diagonal and, right
    of it, ``right`` (n,), whose last element is not read. By LAPACK's bdsqr in 64 bits, once for
    the devices of a process."""
    return _call("bidiagonal_values", _like(diagonal, len(diagonal)), diagonal, right)


def block_reflector(x: jax.Array, s: jax.Array, tile: int) -> tuple[jax.Array, ...]:
    """The QR factorization ``(I - v^T t v^*) r`` of the columns ``x`` (width, P, R).

    Row i of the triangle ``r`` belongs to the i-th slot of superstep ``s``. Slots of earlier
    supersteps count as zero. ``s`` may be one after the last: then nothing is left, and all is
    zero. Returns v (width, P, R), t and r (width, width), both upper triangular.
    """
    width = len(x)
    out = _like(x, *x.shape), _like(x, width, width), _like(x, width, width)
    return tuple(_call("block_reflector", out, x, _integers(tile, s)))


def band_to_bidiagonal(blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The real diagonal and what is right of it, (n,) each, of a bidiagonal matrix with the
    singular values of an upper band. The last number is zero. By LAPACK's gbbrd in 64 bits,
    once for the devices of a process; NaN where a number of the band is not finite.

    Args:
      blocks: (steps, 2, width, width): the triangle on the diagonal, and the adjoint of the one
        right of it; what is below the diagonals of these is not read, nor the last adjoint.
    """
    out = _like(blocks.real, len(blocks) * blocks.shape[2])
    return tuple(_call("band_to_bidiagonal", (out, out), blocks))


def band_eigenvalues(blocks: jax.Array) -> jax.Array:
    """The eigenvalues (n,), ascending, of a Hermitian band. By LAPACK's hbtrd and sterf in 64 bits,
    once for the devices of a process; NaN where a number of the band is not finite.

    Args:
      blocks: the upper half of the band, as in `band_to_bidiagonal`.
    """
    out = _like(blocks.real, len(blocks) * blocks.shape[2])
    return _call("band_eigenvalues", out, blocks)


def reflector(
    panel: jax.Array, v: jax.Array, w: jax.Array, s: jax.Array, c: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`lockstep.linalg._tridiagonalize._next_reflector` of column ``c`` of superstep ``s``."""
    tile = panel.shape[0] // panel.shape[1]
    out = _like(panel, *panel.shape[1:]), _like(panel, 3)
    return tuple(_call("reflector", out, panel, v, w, _integers(tile, s, c)))


def correct(
    y: jax.Array,
    u: jax.Array,
    tau: jax.Array,
    v: jax.Array,
    w: jax.Array,
    s: jax.Array,
    c: jax.Array,
) -> jax.Array:
    """`lockstep.linalg._tridiagonalize._correct` for column ``c`` of superstep ``s``."""
    tile = v.shape[0] // v.shape[1]
    return _call("correct", _like(y, *y.shape), y, u, v, w, tau, _integers(tile, s, c))


Place = tuple[Any, Any, Any]


class Blocks(NamedTuple):
    """Where blocks (i, l) of an array of rank 3 begin; their columns are along the last axis.

    Without a step for ``i`` or ``l`` it is the same block for all of them.
    """

    array: Any
    """For an array that is only written, its shape and dtype."""
    start: Place = (0, 0, 0)
    """The position of block (0, 0)."""
    row_axis: int = 0
    step_i: Place = (0, 0, 0)
    step_l: Place = (0, 0, 0)


class Sizes(NamedTuple):
    """The sizes of a product ``op(a_il) op(b_il)`` of blocks, and the number of blocks."""

    rows: int | jax.Array
    columns: int | jax.Array
    inner: int | jax.Array
    """For ``i = 0``; it is ``taper`` less with each next ``i``."""
    taper: int = 0
    count_i: int = 1
    count_l: int = 1
    adjoint_a: bool = False
    """Whether ``op`` is conjugation and transposition."""
    adjoint_b: bool = False


def _words(sizes: Sizes, *operands: Blocks) -> jax.Array:
    places = [(*o.start, o.row_axis, *o.step_i, *o.step_l) for o in operands]
    return _integers(*sizes, *itertools.chain.from_iterable(places))


def products(c: Blocks, a: Blocks, b: Blocks, sizes: Sizes) -> jax.Array:
    """An array like that of ``c`` with blocks ``op(a_il) op(b_il)``.

    They have to fill it, each with one product: what no block covers holds anything.
    """
    out = _like(c.array, *c.array.shape)
    return _call("products", out, a.array, b.array, _words(sizes, c, a, b))


def subtract_products(c: Blocks, a: Blocks, b: Blocks, sizes: Sizes) -> jax.Array:
    """The array of ``c``, in place, with blocks ``c_il - op(a_il) op(b_il)``.

    Where ``c`` has no step for ``l``, block ``i`` is left all products with its ``l``.
    """
    out, words = _like(c.array, *c.array.shape), _words(sizes, c, a, b)
    return _call("subtract_products", out, c.array, a.array, b.array, words, in_place=True)


def sum_of_products(a: Blocks, b: Blocks, sizes: Sizes) -> jax.Array:
    """The sum of ``op(a_l) op(b_l)`` over all ``l``, (rows, columns), which are static."""
    shape: Any = sizes.rows, 1, sizes.columns
    if sizes.count_l == 1:
        return products(Blocks(_like(a.array, *shape)), a, b, sizes)[:, 0]
    return -subtract_products(Blocks(jnp.zeros(shape, a.array.dtype)), a, b, sizes)[:, 0]


def product_of_each(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x y`` for each pair of matrices, (B, m, n) for (B, m, k) and (B, k, n)."""
    (count, m, inner), n = x.shape, y.shape[2]
    c, a, b = (Blocks(z, row_axis=1, step_i=(1, 0, 0)) for z in (_like(x, count, m, n), x, y))
    return products(c, a, b, Sizes(m, n, inner, count_i=count))


def gram(x: jax.Array) -> jax.Array:
    """`lockstep.linalg._panel._gram` of ``x`` (m, W), with half of the products."""
    return _call("gram", _like(x, x.shape[1], x.shape[1]), x)


def lu_of_difference(top: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both factors of `lockstep.linalg._panel._lu_of_difference` in place of ``top`` (w, w), and
    the signs, (w,)."""
    out = _like(top, *top.shape), _like(top, len(top))
    return tuple(_call("lu_of_difference", out, top, in_place=True))


def reflect(
    b: jax.Array, tall: jax.Array, t: jax.Array, z: jax.Array, at: jax.Array, top: int
) -> jax.Array:
    """`lockstep.linalg._householder._subtract`, in place of ``b``."""
    return _call("reflect", _like(b, *b.shape), b, tall, t, z, _integers(top, at), in_place=True)


def solve_right(x: jax.Array, factor: jax.Array) -> jax.Array:
    """`lockstep.linalg._tiles.solve_right`, in place of ``x`` (m, W)."""
    return _call("solve_right", _like(x, *x.shape), x, factor, in_place=True)


def potrf(a: jax.Array) -> jax.Array:
    """`lockstep.linalg._tiles.potrf` of ``a`` (W, W), in place.

    Devices of one process that ask for the factor of the same block one after another find it once.
    """
    return _call("potrf", _like(a, *a.shape), a, in_place=True)


def trsm(factor: jax.Array, b: jax.Array, conjugate_transpose: bool = False) -> jax.Array:
    """`lockstep.linalg._tiles.trsm`, in place of ``b`` (W, k)."""
    words = _integers(conjugate_transpose)
    return _call("trsm", _like(b, *b.shape), b, factor, words, in_place=True)


def factor_panel(
    a: jax.Array, rows: jax.Array, l_block: jax.Array, top: int, me: jax.Array
) -> jax.Array:
    """`lockstep.linalg._cholesky._factor_panel`, in place of ``a``."""
    words = _integers(top, me)
    return _call("factor_panel", _like(a, *a.shape), a, rows, l_block, words, in_place=True)


def getrf(panel: jax.Array, shared: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`lockstep.linalg._tiles.getrf` of ``panel`` (W, m), in its place.

    ``shared``: the devices of a process ask for the factors of the same panel, and find them once.
    """
    swaps = jax.ShapeDtypeStruct((min(panel.shape),), jnp.int32)
    permutation = jax.ShapeDtypeStruct(panel.shape[1:], jnp.int32)
    out = _like(panel, *panel.shape), swaps, permutation
    return tuple(_call("getrf", out, panel, _integers(shared), in_place=True))


def eliminate(
    a: jax.Array, packed: jax.Array, swaps: jax.Array, top: int, me: jax.Array
) -> jax.Array:
    """`lockstep.linalg._lu._eliminate`, in place of ``a``."""
    words = _integers(top, me)
    return _call("eliminate", _like(a, *a.shape), a, packed, swaps, words, in_place=True)


def secular_roots(
    poles: tuple[jax.Array, ...],
    ascending: jax.Array,
    first: jax.Array,
    count: int,
    squares: bool = False,
) -> jax.Array:
    """The roots ``first`` ... ``first + count - 1`` as offsets from the nearer pole, (B, count).

    ``poles`` are both their words, their weights and rho, as in `lockstep.linalg._secular.Update`.
    An offset is negative if the pole is the one above.
    """
    out, ascending = _like(poles[0], poles[0].shape[0], count), ascending.astype(jnp.int32)
    return _call("secular_roots", out, *poles, ascending, _integers(first, squares))


def secular_weights(
    poles: tuple[jax.Array, ...],
    ascending: jax.Array,
    ranks: jax.Array,
    offset: jax.Array,
    first: jax.Array,
    count: int,
    squares: bool = False,
) -> jax.Array:
    """The weights of the poles from ``first`` on for which these roots are exact, (B, count)."""
    out = _like(poles[0], poles[0].shape[0], count)
    order = ascending.astype(jnp.int32), ranks.astype(jnp.int32)
    words = _integers(first, squares)
    return _call("secular_weights", out, *poles, *order, offset, words)
