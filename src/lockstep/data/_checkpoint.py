"""The state of `batches` in an Orbax checkpoint, also for other numbers of processes."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp

from lockstep._errors import DataError
from lockstep.sync.continues_from import continues_from


class CheckpointHandler(grain.checkpoint.CheckpointHandler):
    """As Grain's: each process writes ``process_I-of-N.json``. A state that is the same on all
    processes is also restored where there are more or fewer of them than have written it."""

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        item = item or args.item
        name = f"process_{jax.process_index()}-of-{jax.process_count()}.json"
        (directory / name).write_text(json.dumps(item.get_state(), indent=4))

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        item = item or args.item
        own = directory / f"process_{jax.process_index()}-of-{jax.process_count()}.json"
        state = json.loads((own if own.exists() else _first(directory)).read_text())
        item.set_state(state)
        if directory.parent.name.isdecimal():  # the step's, as `CheckpointManager` names it
            continues_from(int(directory.parent.name))
        return item


_HANDLER: Any = CheckpointHandler  # Grain's has Orbax's methods without its base class


def _first(directory: Any) -> Any:
    """The file of process 0 of another number of processes."""
    for path in sorted(directory.iterdir()):
        if re.fullmatch(r"process_0-of-\d+\.json", path.name):
            return path
    raise DataError(f"lockstep.data.CheckpointRestore: {directory} has no state of batches.")


@ocp.args.register_with_handler(_HANDLER, for_save=True)
@dataclasses.dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """Saves the place of `batches` in an Orbax checkpoint: after the last batch that was yielded.

    Args:
      item: the iterator that `batches` has returned.
    """

    item: Any


@ocp.args.register_with_handler(_HANDLER, for_restore=True)
@dataclasses.dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """Lets `batches` go on behind the batch at which the checkpoint was made.

    A source that every process can index goes on with the next row, on any number of processes and
    with any batch size: no row is lost, and none comes twice. A source of local rows goes on
    exactly, on as many processes as before; with another number it is a `DataError`, because the
    program has divided the rows, and nothing else knows how.

    After a restart it reports the step (`continues_from`), where the checkpoint's folder has it.

    Args:
      item: an iterator that `batches` has returned, with the same source.
    """

    item: Any
