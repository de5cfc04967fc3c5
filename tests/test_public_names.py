"""What `lockstep` exports, and what importing it does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lockstep
from processes import python

PUBLIC = {
    "ConfigError",
    "DifferenceError",
    "DisagreementError",
    "EngineError",
    "ImportOrderError",
    "InitializationError",
    "LaunchError",
    "LockstepError",
    "RecordError",
    "MissingProcessError",
    "assert_same",
    "barrier",
    "initialize",
    "only_on",
    "process_mesh",
}


def exported() -> list[str]:
    """The names that ``__init__.py`` re-exports: those it imports ``as`` themselves."""
    tree = ast.parse(Path(lockstep.__file__).read_text())
    return [
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "lockstep"  # a package is no name
        for alias in node.names
        if alias.asname is not None and not alias.asname.startswith("_")
    ]


def test_every_public_name_is_exported_exactly_once() -> None:
    assert sorted(exported()) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(lockstep, name).__name__ == name
        assert getattr(lockstep, name).__doc__


def test_every_exception_is_exported() -> None:
    from lockstep import _errors

    own = {
        n
        for n, v in vars(_errors).items()
        if isinstance(v, type) and issubclass(v, lockstep.LockstepError) and n[0] != "_"
    }
    assert own == {name for name in PUBLIC if name.endswith("Error")}
    for name in own - {"LockstepError"}:
        assert issubclass(getattr(lockstep, name), lockstep.LockstepError)
    for name in own:
        assert getattr(_errors, name).__module__ == "lockstep"


def test_the_tree_in_the_docstring_has_every_exception() -> None:
    from lockstep import _errors

    for name in (name for name in PUBLIC if name.endswith("Error")):
        assert name in (_errors.__doc__ or "")


def test_importing_prepares_the_engine_and_nothing_else() -> None:
    ended = python(
        """
        import os, sys, threading
        before, names = dict(os.environ), set(sys.modules)
        descriptors = os.listdir("/proc/self/fd")
        import lockstep
        from lockstep import _engine
        changed = {k: v for k, v in os.environ.items() if before.get(k) != v}
        assert changed == {
            "MPITRAMPOLINE_LIB": str(_engine.library_path()),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi",
        }, changed
        heavy = {"jax", "jaxlib", "numpy", "rich", "asyncio"} & (set(sys.modules) - names)
        assert not heavy, heavy
        assert threading.active_count() == 1
        assert os.listdir("/proc/self/fd") == descriptors
        assert not any("memfd" in line for line in open("/proc/self/maps"))
        """
    )
    assert ended.status == 0, ended
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.parametrize("choice", ["gloo", "mpi"])
def test_importing_with_another_implementation(choice: str) -> None:
    ended = python(
        """
        import os, lockstep
        print(os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"], os.environ.get("MPITRAMPOLINE_LIB"))
        """,
        env={
            "LOCKSTEP_COLLECTIVES": choice,
            **({"MPITRAMPOLINE_LIB": "/opt/libmpiwrapper.so"} if choice == "mpi" else {}),
        },
    )
    wanted = {"gloo": "gloo None\n", "mpi": "mpi /opt/libmpiwrapper.so\n"}
    assert (ended.status, ended.stdout) == (0, wanted[choice]), ended


def test_a_bad_variable_stops_the_import_of_jax() -> None:
    ended = python("import lockstep; import jax", env={"LOCKSTEP_COLLECTIVES": "nccl"})
    assert ended.status == 1
    assert "LOCKSTEP_COLLECTIVES='nccl': expected one of lockstep, gloo, mpi." in ended.stderr


def test_an_engine_that_is_not_there_is_an_error() -> None:
    ended = python("import lockstep; import jax", env={"LOCKSTEP_ENGINE": "/nowhere/x.so"})
    assert ended.status == 1
    assert "EngineError: LOCKSTEP_ENGINE='/nowhere/x.so': no such file." in ended.stderr


def test_the_commands_start_without_an_engine() -> None:
    missing = {"LOCKSTEP_ENGINE": "/nowhere/x.so"}
    ended = python("import lockstep.doctor.cli, lockstep.launch.cli", env=missing)
    assert (ended.status, ended.stderr) == (0, ""), ended
