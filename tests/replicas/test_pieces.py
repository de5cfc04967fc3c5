"""Which devices hold the same piece of an array."""

from __future__ import annotations

import dataclasses

from lockstep.replicas import pieces
from lockstep.replicas.pieces import position


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int


DEVICES = tuple(Device(10 * process + i, process) for process in (0, 1, 2) for i in (0, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Sharding:
    """What JAX says of an array: for each device its slices."""

    slices: tuple[tuple[slice, ...], ...]

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        return dict(zip(DEVICES, self.slices, strict=True))


def test_a_replicated_array_is_one_piece_on_all_devices() -> None:
    [piece] = pieces.of(Sharding(((slice(None), slice(None)),) * 6), (4, 3))
    assert piece.index == ((0, 4), (0, 3))
    assert piece.processes == (0, 1, 2)
    assert piece.devices == DEVICES
    assert piece.of_process(1) == DEVICES[2:4]


def test_along_one_axis_each_piece_has_its_holders() -> None:
    halves = ((slice(0, 2),), (slice(2, None),)) * 3
    first, second = pieces.of(Sharding(halves), (4,))
    assert (first.index, second.index) == (((0, 2),), ((2, 4),))
    assert [device.id for device in first.devices] == [0, 10, 20]
    assert first.of_process(2) == (DEVICES[4],)


def test_what_one_device_holds_is_no_piece() -> None:
    uneven = (slice(0, 2), slice(2, 4), slice(4, 5), slice(0, 2), slice(5, 5), slice(5, 5))
    found = pieces.of(Sharding(tuple((each,) for each in uneven)), (5,))
    assert [(piece.index, piece.processes) for piece in found] == [
        (((0, 2),), (0, 1)),
        (((5, 5),), (2,)),
    ]


def test_a_scalar_has_one_piece() -> None:
    [piece] = pieces.of(Sharding(((),) * 6), ())
    assert piece.index == ()
    assert position((), 0) == ()


def test_an_element_is_found_in_the_whole_array() -> None:
    index = ((4, 8), (0, 3))
    assert [position(index, flat) for flat in (0, 2, 3, 11)] == [(4, 0), (4, 2), (5, 0), (7, 2)]
