"""HighwayHash of a list of devices, which jaxlib adds to a program's hash to number its executions.

Alakuijala, Cox and Wassenberg, "Fast keyed hash/pseudo-random function using SIMD multiply and
permute" (arXiv:1612.06257, 2016), in the 64-bit form. jaxlib hashes the devices' ids in decimal,
one after the other, under a key of its own; tests/facts has both against the installed jaxlib.
"""

from __future__ import annotations

from collections.abc import Sequence

_WORD = (1 << 64) - 1
_HALF = (1 << 32) - 1
_INIT_0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT_1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_JAXLIB_KEY = (0x4EA9929A25D561C6, 0x98470D187B523E8F, 0x592040A2DA3C4B53, 0xBFF8B246E3C587A2)
_PACKET = 32


def hash_of_devices(ids: Sequence[int]) -> int:
    """jaxlib's 64-bit hash of a list of devices, in its order."""
    return highway_hash("".join(map(str, ids)).encode(), _JAXLIB_KEY)


def highway_hash(text: bytes, key: Sequence[int]) -> int:
    """The 64-bit HighwayHash of ``text`` under a key of four 64-bit words."""
    state = _State(key)
    whole = len(text) // _PACKET * _PACKET
    for at in range(0, whole, _PACKET):
        state.update(_lanes(text[at : at + _PACKET]))
    if rest := text[whole:]:
        state.update_rest(rest)
    return state.finish()


def _lanes(packet: bytes | bytearray) -> list[int]:
    return [int.from_bytes(packet[at : at + 8], "little") for at in range(0, _PACKET, 8)]


def _swap_halves(value: int) -> int:
    return (value >> 32 | value << 32) & _WORD


def _rotate_halves(value: int, by: int) -> int:
    low, high = value & _HALF, value >> 32
    turn = [(half << by | half >> (32 - by)) & _HALF for half in (low, high)]
    return turn[1] << 32 | turn[0]


_ZIPPED_LOW = (3, 12, 2, 5, 14, 1, 15, 0)
_ZIPPED_HIGH = (11, 4, 10, 13, 9, 6, 8, 7)


def _zip(low: int, high: int) -> tuple[int, int]:
    """Both words with their bytes mixed, those of ``high`` numbered from 8 on."""
    bytes_ = low.to_bytes(8, "little") + high.to_bytes(8, "little")
    mixed = [bytes(bytes_[i] for i in order) for order in (_ZIPPED_LOW, _ZIPPED_HIGH)]
    return int.from_bytes(mixed[0], "little"), int.from_bytes(mixed[1], "little")


class _State:
    def __init__(self, key: Sequence[int]) -> None:
        self._v0 = [a ^ k for a, k in zip(_INIT_0, key, strict=True)]
        self._v1 = [a ^ _swap_halves(k) for a, k in zip(_INIT_1, key, strict=True)]
        self._mul0: list[int] = list(_INIT_0)
        self._mul1: list[int] = list(_INIT_1)

    def update(self, lanes: Sequence[int]) -> None:
        v0, v1, mul0, mul1 = self._v0, self._v1, self._mul0, self._mul1
        for i, lane in enumerate(lanes):
            v1[i] = (v1[i] + mul0[i] + lane) & _WORD
            mul0[i] ^= (v1[i] & _HALF) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _WORD
            mul1[i] ^= (v0[i] & _HALF) * (v1[i] >> 32)
        for to, of in ((v0, v1), (v1, v0)):
            for i in (0, 2):
                low, high = _zip(of[i], of[i + 1])
                to[i] = (to[i] + low) & _WORD
                to[i + 1] = (to[i + 1] + high) & _WORD

    def update_rest(self, rest: bytes) -> None:
        size = len(rest)
        self._v0 = [(v + (size << 32) + size) & _WORD for v in self._v0]
        self._v1 = [_rotate_halves(v, size) for v in self._v1]
        packet, whole, odd = bytearray(_PACKET), size & ~3, size & 3
        packet[:whole] = rest[:whole]
        if size & 16:
            packet[28:] = rest[-4:]
        elif odd:
            packet[16:19] = bytes((rest[whole], rest[whole + (odd >> 1)], rest[-1]))
        self.update(_lanes(packet))

    def finish(self) -> int:
        for _ in range(4):
            self.update([_swap_halves(self._v0[i]) for i in (2, 3, 0, 1)])
        return (self._v0[0] + self._v1[0] + self._mul0[0] + self._mul1[0]) & _WORD
