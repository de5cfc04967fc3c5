"""Numbers in words that people read. Pure."""

from __future__ import annotations

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def format_size(size: float) -> str:
    """``size`` bytes in the largest binary unit that keeps the number at 1 or more."""
    for unit, factor in reversed(UNITS.items()):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.4g} B"


def counted(number: int, what: str) -> str:
    """``"1 device"``, ``"2 devices"``, ``"2 processes"``."""
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"
