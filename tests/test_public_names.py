"""What `lockstep` exports, and what importing it does."""

from __future__ import annotations

import lockstep
from lanes import sample
from processes import python

PUBLIC = {
    "ConfigError",
    "DataError",
    "DifferenceError",
    "DisagreementError",
    "EngineError",
    "ImportOrderError",
    "InitializationError",
    "InspectError",
    "LaunchError",
    "LockstepError",
    "RecordError",
    "MissingProcessError",
    "Pool",
    "SpawnError",
    "SpawnTimeoutError",
    "assert_same",
    "barrier",
    "broadcast",
    "check_replicas",
    "continues_from",
    "gather",
    "initialize",
    "inspect",
    "only_on",
    "process_mesh",
    "scatter",
    "should_stop",
    "show_sharding",
    "spawn",
}
PACKAGES = {"data", "linalg"}


def test_every_public_name_is_exported_and_nothing_else_is_shown() -> None:
    assert dir(lockstep) == sorted({*PUBLIC, *PACKAGES, "__version__"})
    for name in PUBLIC:
        assert getattr(lockstep, name).__name__ == name
        assert getattr(lockstep, name).__doc__
        assert name in dir(lockstep)  # once it is imported, too
    for name in PACKAGES:
        assert getattr(lockstep, name).__name__ == f"lockstep.{name}"


def test_a_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from lockstep import *", names)
    assert names.keys() - {"__builtins__"} == {*PUBLIC, *PACKAGES, "__version__"}


def test_every_exception_is_exported() -> None:
    from lockstep import _errors

    own = {
        n
        for n, v in vars(_errors).items()
        if isinstance(v, type) and issubclass(v, lockstep.LockstepError) and n[0] != "_"
    }
    assert own == {name for name in PUBLIC if name.endswith("Error")}
    for name in own:
        assert getattr(lockstep, name) is getattr(_errors, name)
        assert getattr(_errors, name).__module__ == "lockstep"
        assert name in (_errors.__doc__ or ""), "the tree there has every exception"


def test_importing_prepares_the_engine_and_nothing_else() -> None:
    ended = python(
        """
        import os, sys, threading
        before, names = dict(os.environ), set(sys.modules)
        descriptors = os.listdir("/proc/self/fd")
        import lockstep
        assert dict(os.environ) == before
        heavy = {"jax", "jaxlib", "numpy", "rich", "asyncio"} & (set(sys.modules) - names)
        assert not heavy, heavy
        assert threading.active_count() == 1
        assert os.listdir("/proc/self/fd") == descriptors
        assert not any("memfd" in line for line in open("/proc/self/maps"))
        """
    )
    assert ended.status == 0, ended
    assert (ended.stdout, ended.stderr) == ("", "")


@sample("choice", ["lockstep", "gloo", "mpi"], 0)
def test_jax_is_imported_with_the_implementation_that_is_chosen(choice: str) -> None:
    ended = python(
        "import lockstep, jax; print(jax.config.jax_cpu_collectives_implementation)",
        env={"LOCKSTEP_COLLECTIVES": choice},
    )
    assert (ended.status, ended.stdout) == (0, "gloo\n" if choice == "gloo" else "mpi\n"), ended


def test_an_engine_that_is_not_there_is_an_error() -> None:
    source = "import lockstep, jax; print('imported', flush=True); jax.devices()"
    ended = python(source, env={"LOCKSTEP_ENGINE": "/nowhere/x.so"})
    assert (ended.status, ended.stdout) == (1, "imported\n")
    assert "EngineError: LOCKSTEP_ENGINE='/nowhere/x.so': no such file." in ended.stderr


def test_the_commands_start_without_an_engine() -> None:
    missing = {"LOCKSTEP_ENGINE": "/nowhere/x.so"}
    ended = python("import lockstep.doctor.cli, lockstep.cli", env=missing)
    assert (ended.status, ended.stderr) == (0, ""), ended
