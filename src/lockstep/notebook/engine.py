"""Inside a process of a notebook's job: its kernel, and what the notebook calls in it.

The launcher of the job (`lockstep.pool.launcher`) runs this module: ipyparallel's engine, whose
number is the process's. On other hosts the ports of ipyparallel's controller, which listens on the
notebook's loopback alone, are sockets in private directories. The controller's file, with the key
that signs its messages, travels as a variable: through ssh's input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from lockstep import _config, _jax_compat
from lockstep._errors import LaunchError
from lockstep._words import counted
from lockstep.engine import bindings

INFO = "IPP_CONNECTION_INFO"
"""ipyparallel's variable with the contents of the controller's file for engines."""

_CONTROLLER_SECONDS = 120.0
_POLL = 0.05
_SAME_INTERRUPT_SECONDS = 1.0
_MAX_SOCKET_PATH = 107


def main() -> None:
    """Runs the engine until it gets SIGTERM."""
    # A notebook shows a figure at the end of its cell, and nothing opens a window.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    os.environ["IPP_CONNECTION_INFO"] = _connection()
    from ipyparallel.engine.app import IPEngine

    sys.argv[1:] = [
        f"--IPEngine.id={_config.current().process_id or 0}",
        "--IPEngine.timeout=60",
        "--log-level=ERROR",
        *sys.argv[1:],
    ]
    IPEngine.launch_instance()


def _connection() -> str:
    """The controller's file for engines, once it is complete.

    The controller and this process start at the same time, and JAX has been imported by now, so
    there is rarely anything to wait for. On several hosts the launcher brings the file.
    """
    info = os.environ.get(INFO)
    run_dir = _config.current().run_dir or ""
    if info and Path(run_dir, socket_name(ports(info)[0])).exists():
        return _through_agent(info, run_dir)
    name = f"ipcontroller-{os.environ['IPP_CLUSTER_ID']}-engine.json"
    path = Path(os.environ["IPP_PROFILE_DIR"], "security", name)
    deadline = time.monotonic() + _CONTROLLER_SECONDS
    while True:
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text()
            json.loads(text)
            return text
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"ipyparallel's controller has not written {path} in {_CONTROLLER_SECONDS:g} s"
            )
        time.sleep(_POLL)


def socket_name(port: int) -> str:
    """The name of a port's socket, as ipyparallel makes addresses: interface, colon, port."""
    return f"port:{port}"


def ports(info: str) -> list[int]:
    """The ports of a controller."""
    found: list[int] = []
    for value in json.loads(info).values():
        each = value if isinstance(value, list) else [value]
        found += [port for port in each if isinstance(port, int)]
    return found


def _through_agent(info: str, run_dir: str) -> str:
    """``info`` with the agent's sockets in place of the controller's ports.

    Raises `LaunchError` where the directory's name is too long for them.
    """
    longest = max(len(socket_name(port)) for port in ports(info))
    if len(run_dir) + 1 + longest > _MAX_SOCKET_PATH:
        raise LaunchError(
            f"the private directory of this run, {run_dir}, has a name too long for sockets in it: "
            f"{_MAX_SOCKET_PATH} bytes with theirs. Set a shorter TMPDIR on this host."
        )
    profile = Path(run_dir, "ipython")
    profile.mkdir(exist_ok=True)  # another process of this host may have made it
    os.environ["IPP_PROFILE_DIR"] = str(profile)
    interface = socket_name(0).partition(":")[0]
    return json.dumps({**json.loads(info), "interface": f"ipc://{run_dir}/{interface}"})


def prepare() -> tuple[int, bool]:
    """Gives cells the names that the notebook shows; returns the id of this process, and whether
    `abort` can end a wait."""
    shell: Any = get_ipython()
    # ipykernel's names have the process's id in them. The lines of a cell, which the recorder and
    # the errors name, would differ between the processes.
    shell.compile.get_code_name = lambda raw, code, number: f"In[{number}]"
    shell.events.register("pre_run_cell", _take_one_interrupt)
    _allow_await(shell.kernel)
    return os.getpid(), _has_engine()


class _NoShellThread:
    """Stands for ipykernel's thread of the shell channel, which an engine does not have."""

    parent_thread = threading.main_thread()


def _allow_await(kernel: Any) -> None:
    """Lets cells with ``await`` end.

    For such a cell ipykernel 7 reads an attribute of its thread of the shell channel. An engine of
    ipyparallel 9.2 has None there: an error in the log, and no answer to the cell.
    """
    if getattr(kernel, "shell_channel_thread", kernel) is not None:
        return
    execute = kernel.do_execute

    async def do_execute(*args: Any, **options: Any) -> Any:
        kernel.shell_channel_thread = _NoShellThread
        try:
            return await execute(*args, **options)
        finally:
            kernel.shell_channel_thread = None

    kernel.do_execute = do_execute


def _take_one_interrupt(*_: Any) -> None:
    """In this cell several SIGINTs of about the same time are one.

    VS Code sends one to this process, and the notebook another. A second KeyboardInterrupt could
    come while IPython handles the first, and the cell would get no answer.
    """
    handle: Any = signal.getsignal(signal.SIGINT)  # ipykernel's, of this cell
    loop = asyncio.get_running_loop()
    taken_at = float("-inf")

    def once(number: int, frame: Any) -> None:
        nonlocal taken_at
        if time.monotonic() >= taken_at + _SAME_INTERRUPT_SECONDS:
            taken_at = time.monotonic()
            handle(number, frame)
            # A cell with await leaves the interrupt to the event loop, which may sleep.
            loop.call_soon_threadsafe(int)

    signal.signal(signal.SIGINT, once)


def begin(number: int) -> None:
    """The next cell has the number ``number`` in the notebook."""
    shell: Any = get_ipython()
    shell.execution_count = number


def devices() -> str:
    """The devices of the job, in words."""
    import jax

    kind = jax.devices()[0].device_kind
    return f"{counted(jax.device_count(), 'device')} ({kind}), jax {jax.__version__}"


def settle() -> None:
    """Waits until all that this process has dispatched has run, also what is to fail."""
    _jax_compat.wait_for_dispatched()


def abort(text: str) -> None:
    """Fails the job's collectives: those that wait, and all later ones, raise ``text``."""
    if _has_engine() and not bindings.abort_text():
        bindings.abort(text)


def _has_engine() -> bool:
    return _config.current().collectives == "lockstep"


def fetch(names: list[str]) -> list[Any]:
    """Variables of this process, JAX's arrays in them as NumPy's.

    Raises NameError where there is none of that name, ValueError for an array of which other
    processes have parts.
    """
    shell: Any = get_ipython()
    return [_portable(name, shell.user_ns) for name in names]


def _portable(name: str, namespace: dict[str, Any]) -> Any:
    if name not in namespace:
        raise NameError(f"process {_config.current().process_id or 0} has no variable {name!r}")
    jax = sys.modules.get("jax")
    if jax is None:
        return namespace[name]
    import numpy as np

    def to_numpy(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ValueError(
                f"{name} is an array of which every process has only its part. Gather it first, in "
                "a cell of all processes: jax.experimental.multihost_utils.process_allgather("
                f"{name}, tiled=True)"
            )
        return np.asarray(leaf)

    return jax.tree.map(to_numpy, namespace[name])


if __name__ == "__main__":
    # Under its own name, so that what the notebook calls is in the same module.
    from lockstep.notebook import engine

    engine.main()
