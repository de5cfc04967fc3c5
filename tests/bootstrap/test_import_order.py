"""`import lockstep` and `import jax`, in every order and manner, each in a process of its own."""

from __future__ import annotations

import pytest

from lanes import sample
from processes import Ended, free_port, python


def well(source: str, **env: str) -> Ended:
    ended = python(source, env=env)
    assert ended.status == 0, ended
    return ended


@sample("earlier", ["import jax", "from jaxlib import xla_client"], 1)
def test_importing_after_jax_is_an_error_that_leaves_jax_usable(earlier: str) -> None:
    said = well(
        f"""
        {earlier}
        try:
            import lockstep
        except ImportError as error:
            print(f"{{type(error).__name__}}: {{error}}")
        import jax
        assert float(jax.numpy.ones(3).sum()) == 3
        """
    ).stdout
    assert said.startswith("ImportOrderError: lockstep was imported after jax")
    assert "Put `import lockstep` before `import jax`" in said
    assert "lockstep run" in said
    assert "LOCKSTEP_COLLECTIVES=gloo" in said


@pytest.mark.full
def test_with_gloo_the_order_does_not_matter() -> None:
    well(
        """
        import jax, lockstep
        from jax._src import clusters
        assert [c.name for c in clusters.ClusterEnv._cluster_types][0] == "lockstep"
        """,
        LOCKSTEP_COLLECTIVES="gloo",
    )


@sample(
    "statement",
    ["import jax", "import jax.numpy as jnp", "from jax import lax", "import jaxlib, jax"],
    2,
)
def test_the_hook_leaves_no_trace_in_jax(statement: str) -> None:
    well(
        f"""
        import importlib, importlib.machinery, importlib.util, inspect, sys
        import lockstep
        hooks = len(sys.meta_path)
        {statement}
        jax = sys.modules["jax"]
        assert len(sys.meta_path) == hooks - 1, sys.meta_path
        for loader in (jax.__loader__, jax.__spec__.loader):
            assert type(loader) is importlib.machinery.SourceFileLoader, loader
        assert jax.__spec__.name == "jax" and jax.__spec__.origin == jax.__file__
        assert inspect.getsource(jax).lstrip().startswith("#")
        import importlib.resources
        assert importlib.resources.files("jax").joinpath("__init__.py").is_file()
        from jax._src import clusters
        names = [c.name for c in clusters.ClusterEnv._cluster_types]
        assert names[0] == "lockstep" and names.count("lockstep") == 1 and len(names) > 3, names
        assert jax.config.jax_cpu_collectives_implementation == "mpi"
        """
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "chosen", ["", "os.environ['JAX_CPU_COLLECTIVES_IMPLEMENTATION'] = 'gloo'"]
)
def test_a_choice_of_gloo_before_jax_is_imported_is_respected(chosen: str) -> None:
    """By the user, or by the program after it has imported lockstep."""
    well(
        f"""
        import os, lockstep
        {chosen}
        import jax
        assert jax.config.jax_cpu_collectives_implementation == "gloo"
        assert os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] == "gloo"
        """,
        **({} if chosen else {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}),
    )


@pytest.mark.full
def test_finding_jax_and_importing_either_again_changes_nothing() -> None:
    well(
        """
        import importlib, importlib.util, sys
        import lockstep
        assert importlib.util.find_spec("jax") is not None
        assert "jax" not in sys.modules
        import jax  # finding it has not spent the hook
        from jax._src import clusters
        def names():
            return [c.name for c in clusters.ClusterEnv._cluster_types]
        assert names()[0] == "lockstep" and names().count("lockstep") == 1
        path = list(sys.meta_path)
        import lockstep
        assert sys.meta_path == path
        importlib.reload(jax)
        assert names()[0] == "lockstep" and names().count("lockstep") == 1
        assert float(jax.numpy.ones(3).sum()) == 3
        """
    )


def test_without_jax_the_usual_error_comes() -> None:
    well(
        """
        import sys
        import lockstep
        sys.path = [p for p in sys.path if "site-packages" not in p]
        for _ in range(2):
            try:
                import jax
            except ModuleNotFoundError as error:
                assert (error.name, str(error)) == ("jax", "No module named 'jax'"), error
            else:
                raise SystemExit("no error")
        """
    )


@pytest.mark.full
def test_a_jax_that_fails_to_import_fails_with_its_own_error() -> None:
    well(
        """
        import os, sys, tempfile
        import lockstep
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/jax")
            open(f"{folder}/jax/__init__.py", "w").write("raise OSError('broken')")
            sys.path.insert(0, folder)
            try:
                import jax
            except OSError as error:
                assert str(error) == "broken"
            else:
                raise SystemExit("no error")
            assert "jax" not in sys.modules
            sys.path.remove(folder)
            sys.path_importer_cache.clear()
        import jax  # the hook must still be good for the one that works
        from jax._src import clusters
        assert clusters.ClusterEnv._cluster_types[0].name == "lockstep"
        """
    )


@pytest.mark.full
def test_a_single_process_program_is_not_touched() -> None:
    well(
        """
        import lockstep
        import jax, jax.numpy as jnp
        x = jax.pmap(lambda a: jax.lax.psum(a, "i"), "i")(jnp.ones((2, 3)))
        assert x.tolist() == [[2.0] * 3] * 2
        from lockstep.engine import bindings
        assert set(bindings.counts().values()) == {0}, "no job, no engine"
        """,
        JAX_NUM_CPU_DEVICES="2",
    )


@pytest.mark.full
def test_the_engine_without_lockstep_says_what_to_do() -> None:
    from lockstep.engine import bindings

    ended = python(
        """
        import jax
        try:
            jax.distributed.initialize("127.0.0.1:" + __import__("sys").argv[1], 1, 0)
            x = jax.pmap(lambda a: jax.lax.psum(a, "i"), "i")(jax.numpy.ones((2, 3)))
            x.block_until_ready()
        except Exception as error:
            print(error)
        """,
        str(free_port()),
        env={
            "MPITRAMPOLINE_LIB": str(bindings.library_path()),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi",
            "JAX_NUM_CPU_DEVICES": "2",
        },
    )
    assert "it was not configured" in ended.stdout, ended
    assert "Put `import lockstep` before `import jax`" in ended.stdout
    assert "lockstep run" in ended.stdout
