"""From which checkpoint a program goes on, for the account of the restarts.

The program knows it, and the launcher does not: checkpoints are the program's own. Process 0 prints
the line, since its output reaches the user however the job was started, and leaves a note for
``restarts.json``.
"""

from __future__ import annotations

from lockstep import _config, _run_files
from lockstep._stderr import complain


def continues_from(step: int) -> None:
    """Tells the launcher that the program has restored the checkpoint of ``step``.

    Each process may call it; it waits for nothing. After a restart process 0 prints a line with the
    step, and ``restarts.json`` has it. Otherwise it does nothing.
    """
    config = _config.current()
    if config.process_id != 0 or not config.attempt:
        return
    complain(f"attempt {config.attempt} continues from step {int(step)}")
    if folder := config.own_dir:
        _run_files.write_continues_from(folder, int(step))
