"""Runs cells in a new kernel on this host: ``cells.py FOLDER JSON`` prints what each has shown.

JSON has a list of pairs: a cell, and text of its output after which it is interrupted, or null.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from notebooks import notebook


def main(folder: str, cells: str) -> None:
    shown = []
    with notebook(Path(folder)) as kernel:
        for source, interrupt_after in json.loads(cells):
            shown.append(kernel.run(source, interrupt_after))
    print(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
