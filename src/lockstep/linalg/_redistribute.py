"""Sharded matrices to rows of slots and back. All of it runs inside `jax.shard_map`.

A device sends and receives its own share, by all-to-all; rows are gathered only if the caller's
sharding replicates them. Besides its share a device holds at most one send and one receive buffer.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg._layout import RowMap, Sharded, exchange, reordering


def device_index(sharded: Sharded) -> jax.Array:
    return lax.axis_index(sharded.axes) if sharded.axes else jnp.int32(0)


def rows_from_shard(shard: jax.Array, sharded: Sharded, n: int, wanted: RowMap) -> jax.Array:
    """The rows of this device under ``wanted``, all columns; rows of padding are zero.

    ``shard`` is this device's part of a matrix of ``n`` rows. Shape: (wanted.rows, columns).
    """
    each = sharded.rows_each(n)
    holders = sharded.size(sharded.idle_axes + sharded.column_axes)
    shard = _pad_rows(shard, holders * each)
    if sharded.idle_axes:
        mine = sharded.size(sharded.column_axes) * each
        at = lax.axis_index(sharded.idle_axes) * mine
        shard = lax.dynamic_slice_in_dim(shard, at, mine, axis=0)
    if sharded.column_axes:
        shard = lax.all_to_all(shard, sharded.column_axes, 0, 1, tiled=True)
    return move(shard, RowMap.in_blocks(sharded, n), wanted, sharded)


def shard_from_rows(rows: jax.Array, held: RowMap, sharded: Sharded, n: int) -> jax.Array:
    """The inverse of `rows_from_shard`: this device's shard of the matrix whose rows it holds."""
    rows = move(rows, held, RowMap.in_blocks(sharded, n), sharded)
    if sharded.column_axes:
        rows = lax.all_to_all(rows, sharded.column_axes, 1, 0, tiled=True)
    if sharded.idle_axes:
        rows = lax.all_gather(rows, sharded.idle_axes, axis=0, tiled=True)
    return rows[: n // sharded.size(sharded.row_axes)]


def move(rows: jax.Array, source: RowMap, target: RowMap, sharded: Sharded) -> jax.Array:
    """Local rows (source.rows, k) to the layout ``target`` (target.rows, k), zero where padded."""
    if source.blocks == target.blocks and source.blocks is not None:
        return _pad_rows(rows, target.rows)
    if np.array_equal(source.row_of_slot, target.row_of_slot):
        return rows
    tables, columns = exchange(source, target), rows.shape[1]
    shares = source.rows + target.rows, columns + -columns % source.devices
    if source.devices * tables.width * columns > math.prod(shares):
        return _move_in_columns(rows, source, target, sharded)
    me = device_index(sharded)
    send = jnp.asarray(tables.send)[me]
    buffer = jnp.take(rows, send, axis=0, mode="fill", fill_value=0)
    buffer = lax.all_to_all(buffer, sharded.axes, 0, 0, tiled=True)
    buffer = buffer.reshape(-1, rows.shape[1])
    return jnp.take(buffer, jnp.asarray(tables.take)[me], axis=0, mode="fill", fill_value=0)


def _move_in_columns(
    rows: jax.Array, source: RowMap, target: RowMap, sharded: Sharded
) -> jax.Array:
    """`move` where some devices have many rows for each other and others none: two all-to-alls of
    a share, between which each device has all rows of some columns."""
    columns, devices = rows.shape[1], source.devices
    rows = jnp.pad(rows, ((0, 0), (0, -columns % devices)))
    whole = lax.all_to_all(rows, sharded.axes, 1, 0, tiled=True)
    slots = jnp.asarray(reordering(source, target))
    whole = jnp.take(whole, slots, axis=0, mode="fill", fill_value=0)
    return lax.all_to_all(whole, sharded.axes, 0, 1, tiled=True)[:, :columns]


def _pad_rows(rows: jax.Array, count: int) -> jax.Array:
    if rows.shape[0] >= count:
        return rows[:count]
    return jnp.pad(rows, ((0, count - rows.shape[0]), (0, 0)))


def columns_to_slots(rows: jax.Array, layout: RowMap) -> jax.Array:
    """(rows, n) to (rows, devices, layout.rows): the columns as slots, zero where padded."""
    count, n = rows.shape
    shape = (count, layout.devices, layout.rows)
    if layout.blocks is None:
        return in_slots(jnp.pad(rows, ((0, 0), (0, layout.padded - n))), layout)
    if layout.is_plain:
        return rows.reshape(shape)
    parts = [
        jnp.pad(rows[:, start : start + held], ((0, 0), (0, layout.rows - held)))
        for start, held in layout.blocks
    ]
    return jnp.stack(parts, axis=1)


def columns_from_slots(slots: jax.Array, layout: RowMap) -> jax.Array:
    """The inverse of `columns_to_slots`."""
    count = slots.shape[0]
    if layout.blocks is None:
        return in_order(slots, layout.tile)[:, : layout.n]
    if layout.is_plain:
        return slots.reshape(count, layout.n)
    ordered = sorted((start, q, held) for q, (start, held) in enumerate(layout.blocks) if held)
    return jnp.concatenate([slots[:, q, :held] for _, q, held in ordered] or [slots[:, 0]], axis=1)


# Slots have their columns by devices, (P, t), where the order of elimination is by supersteps, then
# by devices.


def in_order(slots: jax.Array, tile: int) -> jax.Array:
    """The columns of (rows, P, t) in the order of elimination: (rows, P t)."""
    count, devices, width = slots.shape
    steps = slots.reshape(count, devices, width // tile, tile)
    return steps.swapaxes(1, 2).reshape(count, devices * width)


def in_slots(columns: jax.Array, layout: RowMap) -> jax.Array:
    """The inverse of `in_order`."""
    count, width = columns.shape[0], columns.shape[1] // layout.devices
    steps = columns.reshape(count, width // layout.tile, layout.devices, layout.tile)
    return steps.swapaxes(1, 2).reshape(count, layout.devices, width)


def set_padding(slots: jax.Array, layout: RowMap, me: jax.Array, value: jax.Array) -> jax.Array:
    """Puts ``value`` on the diagonal of the padding."""
    if layout.padded == layout.n:
        return slots
    is_padding = jnp.asarray(layout.row_of_slot >= layout.n)[me]
    local = jnp.arange(layout.rows)
    there = slots[local, me, local]
    return slots.at[local, me, local].set(jnp.where(is_padding, value, there))


def adjoint(slots: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The conjugate transpose of a square matrix of slots: one all-to-all of the local share."""
    sent = lax.all_to_all(slots.transpose(1, 2, 0), axes, 0, 0, tiled=True)
    return sent.swapaxes(0, 1).conj()
