"""Everything that Lockstep takes from private JAX, and every branch on a version of it.

One file, though a long one: who supports a new jax has to look at nothing else.

Nothing here imports jax at import time: `import lockstep` must come before jaxlib is loaded and
cost nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

OLDEST_JAX = (0, 8)
NEWEST_TESTED_JAX = (0, 10)


def jaxlib_is_loaded() -> bool:
    """Whether this process has mapped jaxlib's library, and so has run MPItrampoline's loader."""
    if not any(name == "jaxlib" or name.startswith("jaxlib.") for name in sys.modules):
        return False
    with open("/proc/self/maps") as maps:
        return any("libjax_common.so" in line for line in maps)


class _RunAfterImport:
    """Runs a callback once, right after the first import of ``jax`` has succeeded.

    Until then it stays: a program may look for jax (``importlib.util.find_spec``), or fail to
    import it, and import it later.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "jax":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        for find in (getattr(finder, "find_spec", None) for finder in others):
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._callback()


class _Loader:
    """jax's own loader in everything but one call afterwards."""

    def __init__(self, loader: Any, imported: Callable[[], None]) -> None:
        self._loader = loader
        self._run_imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # Nobody who looks at jax later should find this class in its place.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._run_imported()


def after_jax_import(callback: Callable[[], None]) -> None:
    """Runs ``callback`` as soon as jax is imported; at once when it is already."""
    if "jax" in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _RunAfterImport(callback))


class Place(Protocol):
    """A process's place in the job, as cluster detection finds it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def coordinator(self) -> str | None: ...


def register_cluster(find_place: Callable[[], Place | None]) -> None:
    """Lets a bare ``jax.distributed.initialize()`` find its place through ``find_place``.

    Ours goes first: inside a Slurm allocation, JAX's own detection would take the variables of the
    allocation for those of our processes.
    """
    from jax._src import clusters

    class LockstepCluster(clusters.ClusterEnv):
        name = "lockstep"

        @classmethod
        def is_env_present(cls) -> bool:
            return find_place() is not None

        @classmethod
        def get_coordinator_address(
            cls, timeout_secs: int | None = None, override_coordinator_port: str | None = None
        ) -> str:
            address = cls._place().coordinator
            assert address is not None  # find_place asks the other processes for it
            if address.startswith("127."):
                # JAX reads this next. A job of one machine is no business of the network's. It is
                # not set any earlier: a program that passes its own address would bind ours.
                os.environ.setdefault("JAX_COORDINATOR_BIND_ADDRESS", address)
            if override_coordinator_port is None:
                return address
            return f"{address.rpartition(':')[0]}:{override_coordinator_port}"

        @classmethod
        def get_process_count(cls) -> int:
            return cls._place().size

        @classmethod
        def get_process_id(cls) -> int:
            return cls._place().rank

        @classmethod
        def _place(cls) -> Place:
            place = find_place()
            assert place is not None  # JAX asks is_env_present first
            return place

    known = clusters.ClusterEnv._cluster_types
    known.remove(LockstepCluster)
    known.insert(0, LockstepCluster)


def around_cpu_client(
    before: Callable[[], None],
    after: Callable[[Any], None],
    within: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Runs ``before`` right before JAX makes its CPU client, when JAX is distributed by then.

    It may change ``jax_cpu_collectives_implementation``, and what it raises reaches the user.
    ``after`` is given the client. It is made in the block of ``within``, distributed or not.
    """
    from jax._src import xla_bridge

    registration: Any = xla_bridge._backend_factories["cpu"]
    make_client = registration.factory

    def make_client_between(*args: Any, **kwargs: Any) -> Any:
        if distributed_client() is None:
            with within():
                return make_client(*args, **kwargs)
        before()
        with within():
            client = make_client(*args, **kwargs)
        after(client)
        return client

    registration.factory = make_client_between


def end_wait_for_devices(client: Any, processes: int) -> None:
    """Has the making of JAX's CPU client end with an error where it waits for who has died.

    Each process writes its devices into the key-value store, the first one gathers them, and all
    wait for that, for minutes. What is no list of devices is as good as an answer.
    """
    waited_for = [f"cpu:local_topology/cpu/{process}" for process in range(processes)]
    with contextlib.suppress(Exception):  # without the service, nobody waits for its answer
        for key in ["cpu:global_topology/cpu", *waited_for]:
            client.key_value_set(key, "somebody has died", allow_overwrite=True)


def note_programs(client: Any, note: Callable[[Any, tuple[int, ...] | None], None]) -> None:
    """Calls ``note`` with each program that a client of this class compiles or loads from now on.

    And with the ids of the program's devices, in the order of its own numbers for them, where they
    are known. To be called once. Raises TypeError or AttributeError where the class of this jaxlib
    does not let itself be changed.
    """
    kind, platform = type(client), client.platform
    # The two that are known have to be there; what may come beside them is named like them.
    names = {"compile_and_load", "deserialize_executable"}
    names |= {name for name in dir(kind) if name.startswith(("compile", "deserialize", "load"))}
    makers = {name: getattr(kind, name) for name in names}

    def wrap(name: str, make: Any) -> Any:
        def making(self: Any, *args: Any, **options: Any) -> Any:
            made = make(self, *args, **options)
            is_loaded = hasattr(made, "local_devices") and self.platform == platform
            # A program that is loaded may bring a device assignment of its own.
            ids = _ids_of_devices(*args, **options) if name.startswith("compile") else None
            if is_loaded:
                note(made, ids)
            return made

        return making

    for name, make in makers.items():
        setattr(kind, name, wrap(name, make))


def _ids_of_devices(
    program: Any = None,
    executable_devices: Any = None,
    compile_options: Any = None,
    *_: Any,
    **__: Any,
) -> tuple[int, ...] | None:
    if compile_options is None:
        return None  # without options, XLA chooses
    with contextlib.suppress(TypeError, AttributeError):
        return tuple(device.id for device in executable_devices)
    return None


def around_executions(around: Callable[[Callable[[], Any]], Any]) -> None:
    """Has every execution of a compiled program made by ``around``, which calls what it is given.

    That returns when the program has run. JAX's shortcut, by which a program is executed a second
    time without a line of Python, is closed.
    """
    import jax

    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    call = pxla.ExecuteReplicated.__call__

    def execute(self: Any, *args: Any) -> Any:
        def run() -> Any:
            results = jax.block_until_ready(call(self, *args))
            if not results and (self.has_unordered_effects or self.ordered_effects):
                jax.effects_barrier()
            return results

        return around(run)

    pxla.ExecuteReplicated.__call__ = execute
    # What a program's first execution hands to the shortcut; None is "there is none".
    pxla.MeshExecutableFastpathData = lambda *_: None


def choose_collectives(implementation: str) -> None:
    """What ``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` says, for a jax that has read it already."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", implementation)


def around_backends(after: Callable[[str], bool]) -> None:
    """Runs ``after`` when JAX has backends, until it returns True; explains a missing GPU.

    ``after`` is given the default platform. JAX asks for its backends before it compiles anything,
    so it comes before the first program. JAX's words for "may use CUDA only, and there is no GPU" are a bare assertion.
    """
    from jax._src import xla_bridge

    make_backends = xla_bridge.backends
    done = False

    def backends() -> Any:
        nonlocal done
        try:
            made = make_backends()
        except AssertionError:
            if words := _missing_gpu():
                raise RuntimeError(words) from None
            raise
        if not done:
            done = True  # ``after`` may ask for the backends itself
            # `jax.default_backend()` would call itself here.
            done = after(getattr(xla_bridge._default_backend, "platform", ""))
        return made

    xla_bridge.backends = backends


def _missing_gpu() -> str:
    import jax

    asked = jax.config.values["jax_platforms"] or ""
    if not {"cuda", "gpu"} & set(asked.split(",")):
        return ""
    return (
        f"JAX may use the platform {asked} only (--platform, JAX_PLATFORMS), but finds no "
        "NVIDIA GPU on this machine. `lockstep doctor` shows what is here; for CPUs: "
        "--platform cpu."
    )


class _Instead:
    """A module with some of its names replaced, for one other module that looks into it."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def survive_dead_peers(
    serve: Callable[[str, int, dict[str, Any]], Any | None],
    before_another_job: Callable[[str, Sequence[str]], str],
    on_joining: Callable[[], None],
) -> None:
    """Keeps JAX's coordination service from ending a process because another has died.

    Every process becomes "recoverable", unless the user has said otherwise: the service then tells
    nobody of a dead peer, and the shutdown at exit waits for nobody. ``serve`` is given what
    `coordination_service` takes, and returns what stands for the service in process 0, or None:
    then it starts in process 0. There process 0 must not be the first to go, so nobody is
    recoverable. ``before_another_job`` runs when this process joins a job for the second time:
    given the service's address and those of earlier jobs of several processes, it says where the
    service shall be. ``on_joining`` runs at the first.
    """
    import jax

    distributed: Any = importlib.import_module("jax._src.distributed")
    if "jax_enable_recoverability" not in jax.config.values:
        return
    if "JAX_ENABLE_RECOVERABILITY" not in os.environ:
        jax.config.update("jax_enable_recoverability", True)

    def is_recoverable() -> bool:
        return jax.config.values["jax_enable_recoverability"]

    def place(address: str) -> str:
        if not joined:
            return address
        free = before_another_job(address, earlier)
        # Inside process 0, the earlier service has ended as JAX was shut down there.
        return free if is_recoverable() else address

    def service(address: str, num_nodes: int, **options: Any) -> Any:
        nonlocal alone
        alone = num_nodes == 1
        address = place(address)
        if num_nodes > 1 and is_recoverable():
            outside = serve(address, num_nodes, options)
            if outside is not None:
                return outside
        if "recoverable" in options:  # jax 0.9.1 and later; before that, each client says it
            options["recoverable"] = False
        return coordination_service(address, num_nodes, options)

    def client(address: str, *args: Any, **options: Any) -> Any:
        nonlocal joined
        global _heartbeat_seconds
        _heartbeat_seconds = options.get("heartbeat_timeout") or _heartbeat_seconds
        address = place(address)
        if not joined:
            on_joining()
        joined = True
        if not alone:  # the others know nothing of that job
            earlier.append(address)
        return connect(address, *args, **options)

    joined, alone = False, False
    earlier: list[str] = []
    module = distributed._jax
    connect = module.get_distributed_runtime_client
    distributed._jax = _Instead(
        module, get_distributed_runtime_service=service, get_distributed_runtime_client=client
    )


def coordination_service(address: str, num_nodes: int, options: dict[str, Any]) -> Any:
    """JAX's coordination service, as JAX starts it; it serves until the object is gone.

    Needs jaxlib alone, so that a process that does nothing else starts in half of the time.
    """
    library: Any = importlib.import_module("jaxlib._jax")
    return library.get_distributed_runtime_service(address, num_nodes, **options)


def distributed_client() -> Any:
    """JAX's client of the coordination service (the key-value store), or None."""
    from jax._src import distributed

    return distributed.global_state.client


_heartbeat_seconds = 100.0
"""JAX's default, for those who do not say."""


def heartbeat_seconds() -> float:
    """``heartbeat_timeout_seconds`` as given to ``jax.distributed.initialize``."""
    return _heartbeat_seconds


def service_answers(key: str, seconds: float) -> bool:
    """Whether JAX's coordination service says in time what ``key`` is, which has been set.

    True where this process has left it.
    """
    client = distributed_client()
    if client is None:
        return True
    try:
        client.blocking_key_value_get(key, round(seconds * 1000))
    except Exception:  # too late, no connection, or a client that is closed: nobody answers
        return False
    return True


def set_client_aside() -> None:
    """Has the end of this process not wait for JAX's coordination service, which is out of reach.

    JAX's client would say goodbye at exit, wait five minutes for an answer, and abort the process.
    """
    from jax._src import distributed

    state = distributed.global_state
    for left in (state.client, state.preemption_sync_manager):
        if left is not None:
            # For good: its destructor says goodbye too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
    state.client = state.preemption_sync_manager = None


def distributed_place() -> tuple[int, int]:
    """(process id, number of processes) as given to ``jax.distributed.initialize``."""
    from jax._src import distributed

    return distributed.global_state.process_id, distributed.global_state.num_processes


def coordinator_address() -> str:
    """``HOST:PORT`` of JAX's coordination service, as this process was given it."""
    from jax._src import distributed

    return distributed.global_state.coordinator_address or ""


def live_executables() -> list[Any]:
    """The compiled programs of the CPU backend; none where there is no backend.

    The public way to the backend makes one where there is none, without the processes of a job that
    has yet to begin.
    """
    cpu = _cpu_backend()
    return cpu.live_executables() if cpu is not None else []


def live_arrays() -> list[Any]:
    """The arrays on CPU devices; none where there is no backend."""
    cpu = _cpu_backend()
    return cpu.live_arrays() if cpu is not None else []


def wait_for_dispatched() -> None:
    """Returns when all is done that this thread has dispatched to the CPU devices of this process.

    A thread's programs run in turn on a device, so one more is the last.
    """
    import jax

    if has_backend():
        for device in jax.local_devices(backend="cpu"):
            (jax.device_put(0, device) + 1).block_until_ready()


def has_backend() -> bool:
    """Whether JAX has devices yet."""
    from jax._src import xla_bridge

    return bool(xla_bridge._backends)


def device_lists() -> set[tuple[int, ...]]:
    """The lists of devices that programs are likely to run on, by id and in order.

    All devices of the job, and those of the meshes that arrays lie on.
    """
    cpu = _cpu_backend()
    if cpu is None:
        return set()
    lists = {tuple(device.id for device in cpu.devices())}
    for mesh in {getattr(array.sharding, "mesh", None) for array in cpu.live_arrays()}:
        devices = getattr(mesh, "devices", None)
        if devices is not None:
            lists.add(tuple(device.id for device in devices.flat))
    return lists


def _cpu_backend() -> Any:
    from jax._src import xla_bridge

    return xla_bridge._backends.get("cpu")


def device_id_bytes() -> int:
    """The width of a device id in XLA's lists of devices, which the engine reads."""
    import jaxlib

    return 4 if jaxlib.version.__version_info__ >= (0, 9, 1) else 8


def numbers_programs() -> bool:
    """Whether the numbers of a program's executions are the same in all processes for good.

    Before 0.9, a program that one process had compiled again (after ``jax.clear_caches``, say) was
    counted from the start again there.
    """
    import jaxlib

    return jaxlib.version.__version_info__ >= (0, 9)


def under_derivatives(array: Any) -> Any:
    """The array below the tracers of `jax.grad` and `jax.jvp`; outside jit it is a concrete one."""
    from jax.core import Tracer

    while isinstance(array, Tracer) and hasattr(array, "primal"):
        array = array.primal
    return array


def varying_axes(array: Any) -> frozenset[str]:
    """The axes of `jax.shard_map` over which JAX tracks ``array``: none under check_vma=False."""
    import jax

    kind: Any = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)  # since jax 0.10; `vma` of the type before
    return getattr(kind, "vma", frozenset()) if manual is None else manual.varying
