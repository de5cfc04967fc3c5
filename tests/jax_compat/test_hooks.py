"""A jax without what a hook needs: that hook is left out, one line says so, the rest works.

Each case hides or removes a name when jax has been imported, before Lockstep's hooks are put in.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import jax
import pytest

from lanes import sample
from lockstep import _jax_compat
from processes import python, write_key
from support import Result, run_lockstep

HIDE = """
import importlib, sys, types

def hide(module, name):
    "Takes a name from Lockstep, which asks for it as an attribute; jax itself goes on using it."
    def look_up(self):
        if sys._getframe(1).f_globals["__name__"].startswith("lockstep"):
            raise AttributeError(f"no {name} here")
        return vars(self)[name]
    module.__class__ = type("Hiding", (types.ModuleType,), {name: property(look_up)})
"""
BREAKING = f"""{HIDE}
import lockstep

finder = next(f for f in sys.meta_path if type(f).__module__ == "lockstep._jax_compat.importing")
put_in = finder._callback
def after_import():
    import jax, jaxlib._jax
    from jax._src import clusters, distributed, xla_bridge
__BREAKS__
    put_in()
__MENDS__
finder._callback = after_import
"""
SUM = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
__INITIALIZE__
mesh = jax.make_mesh((jax.device_count(),), ("x",))
total = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P(), out_specs=P())
x = jax.jit(total)(jnp.ones(3, jnp.float32))
print("sum", float(x[0]), jax.config.jax_cpu_collectives_implementation)
"""
BARE = "jax.distributed.initialize()"
NEW = "jax.__version__ = '0.99.0'"


def broken(breaks: str, mends: str = "") -> str:
    """Imports lockstep, whose hooks find a jax that is changed; ``mends`` comes after them."""
    head = BREAKING.replace("__BREAKS__", textwrap.indent(breaks, "    "))
    return head.replace("__MENDS__", textwrap.indent(mends, "    "))


def run(breaks: str, *options: str, initialize: str = BARE, status: int = 0, **env: str) -> Result:
    source = broken(breaks) + SUM.replace("__INITIALIZE__", initialize)
    return run_lockstep(list(options), source, timeout=100, env=env, expect_status=status)


def hooks_lost(breaks: str, *options: str, sums: str = "sum 2.0 mpi", **more) -> list[str]:
    """What is said of hooks in a job that computes all the same."""
    result = run(breaks, *options, **more)
    assert all(sums in result.by_process[i] for i in (0, 1)), result
    lines = [line for lines in result.stderr_by_process.values() for line in lines]
    return [line for line in lines if line.startswith('lockstep: the hook "')]


CASES = {
    "cluster detection": (
        "clusters.ClusterEnv._cluster_types = tuple(clusters.ClusterEnv._cluster_types)",
        "does not find its place",
    ),
    "coordination service": (
        "delattr(type(jax.config), 'jax_enable_recoverability')",
        "JAX aborts the others",
    ),
    "barriers": (
        "del jaxlib._jax.DistributedRuntimeClient.key_value_try_get",
        "may pass where the others have failed",
    ),
    "backends": ("hide(xla_bridge, 'backends')", "float16 and float8"),
    "live programs": ("hide(xla_bridge, '_backends')", "do not name the lines"),
    "compiled programs": (
        "del jaxlib._jax.Client.deserialize_executable",
        "only while JAX keeps it",
    ),
    "compilation cache": (
        "from jax._src import lru_cache\nhide(lru_cache, '_CACHE_SUFFIX')",
        "every process but the first compiles",
    ),
    "collectives": ("del jaxlib._jax.make_mpi_collectives", "collectives run on gloo"),
    "after the import of jax": ("lockstep._jax_compat.report_version = None", "on gloo"),
}
NEEDS_OURS = ("cluster detection", "after the import of jax")
"""Without these, only `lockstep.initialize` knows the process's place."""


@pytest.mark.full
@sample("hook", CASES, 7)
def test_a_hook_that_does_not_fit_is_left_out(hook: str) -> None:
    breaks, lost = CASES[hook]
    collectives = "gloo" if "on gloo" in lost else "mpi"
    initialize = "lockstep.initialize()" if hook in NEEDS_OURS else BARE
    [line] = hooks_lost(breaks, sums=f"sum 2.0 {collectives}", initialize=initialize)
    assert line.startswith(f'lockstep: the hook "{hook}" does not fit jax {jax.__version__} (')
    assert "Lost: " in line
    assert lost in line
    assert _jax_compat.pin() in line


NO_FACTORIES = "hide(xla_bridge, '_backend_factories')"


@pytest.mark.full
@pytest.mark.parametrize("breaks", [NO_FACTORIES, "del distributed.State.coordinator_address"])
def test_where_the_engine_cannot_be_offered_the_run_goes_on_gloo(breaks: str) -> None:
    [line] = hooks_lost(breaks, sums="sum 2.0 gloo")
    assert 'the hook "collectives" does not fit' in line
    assert "Lost: the engine; collectives run on gloo." in line


NO_EXECUTIONS = """
pxla = importlib.import_module('jax._src.interpreters.pxla')
hide(pxla, 'ExecuteReplicated')
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("breaks", "options", "sums", "hook"),
    [
        (NO_FACTORIES, "--collectives gloo", "sum 2.0 gloo", "CPU client"),
        (NO_EXECUTIONS, "-d 2 --strict", "sum 4.0 mpi", "executions of programs"),
        (NO_EXECUTIONS, "--check-replicas", "sum 2.0 mpi", "arguments of programs"),
    ],
    ids=["gloo", "strict", "check-replicas"],
)
def test_what_an_option_asks_for_is_lost_alone(
    breaks: str, options: str, sums: str, hook: str
) -> None:
    [line] = hooks_lost(breaks, *options.split(), sums=sums)
    assert f'the hook "{hook}" does not fit' in line


RENAMED = """
state = distributed.State
of_jax = state.initialize
def initialize(self, *args, initialization_timeout=300, **more):
    of_jax(self, *args, **more)
state.initialize = initialize
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("hook", "breaks"),
    [
        ("coordination service", RENAMED),
        ("backends", "from lockstep.bootstrap import jax_hooks\njax_hooks._register_pass = None"),
        (
            "loss of the coordination service",
            "from lockstep._jax_compat import lost_service\nlost_service._LIBRARY = 'no such file'",
        ),
    ],
)
def test_what_fails_later_than_at_the_import_is_one_line_too(hook: str, breaks: str) -> None:
    # A signature of `initialize` that is not known is lost for the detection of clusters, too.
    [line] = [one for one in hooks_lost(breaks) if f'"{hook}"' in one]
    assert f'the hook "{hook}" does not fit' in line


@pytest.mark.full
def test_a_jax_that_passes_more_arguments_is_served() -> None:
    further = """
from jax._src import clusters, xla_bridge
assert xla_bridge.backends() is not None
ours = clusters.ClusterEnv._cluster_types[0]
assert ours.is_env_present(new=1)
assert ours.get_process_id(new=1) == jax.process_index()
assert ours.get_process_count(new=1) == 2
assert ours.get_coordinator_address(60, None, new=1)
assert xla_bridge.backends(new=1)["cpu"].process_index() == jax.process_index()
"""
    breaks = "make = xla_bridge.backends\nxla_bridge.backends = lambda *_, **__: make()"
    assert hooks_lost(breaks, initialize=BARE + further) == []


@pytest.mark.full
def test_errors_that_wait_for_jax_s_devices_are_lost_with_a_line() -> None:
    """Of a wrong setting, and of an import that came too late in a child."""
    late = "sys.modules['__mp_main__'] = types.ModuleType('__mp_main__')"
    hides = "from jax._src import xla_bridge\nhide(xla_bridge, 'backends')"
    wrong = broken(hides) + "import jax\n"
    too_late = f"{HIDE}\n{late}\nimport jax\n{hides}\nimport lockstep\n"
    for source, env in ((wrong, {"LOCKSTEP_COLLECTIVES": "nccl"}), (too_late, {})):
        ended = python(f"{source}print(jax.devices()[0].platform)", env=env)
        assert (ended.status, ended.stdout) == (0, "cpu\n"), ended
        assert 'lockstep: the hook "backends" does not fit jax' in ended.stderr


NO_BACKENDS = "hide(xla_bridge, 'backends')"
NO_REPORT = "lockstep._jax_compat.report_version = None"


@sample("also", ["", NO_BACKENDS, NO_REPORT], 0)
def test_with_a_key_nothing_goes_over_gloo(tmp_path: Path, also: str) -> None:
    key = write_key(tmp_path / "key")
    breaks = f"del jaxlib._jax.make_mpi_collectives\n{also}"
    result = run(breaks, status=1, LOCKSTEP_KEY_FILE=str(key))
    if also == NO_BACKENDS:  # what would have said so is missing too
        assert "sum" not in result.stdout
        return
    assert "InitializationError: the engine does not fit this jax (" in result.stderr
    assert "LOCKSTEP_KEY_FILE is set, so the data must not go over gloo" in result.stderr
    assert "sum" not in result.stdout


@pytest.mark.full
def test_float16_is_lost_where_the_pass_cannot_be_registered() -> None:
    if not _jax_compat.has_passes():
        pytest.skip("this jax has no place for a pass: tests/hlo/test_float16_pass.py")
    [line] = hooks_lost(
        "from lockstep._jax_compat import programs\n"
        "found = next(filter(importlib.util.find_spec, programs._PASSES))\n"
        "hide(importlib.import_module(found), 'register_hlo_module_transformation')"
    )
    assert 'the hook "float16 pass"' in line


def test_a_call_with_unknown_arguments_goes_to_jax_itself() -> None:
    from lockstep._jax_compat import survival

    seen = []
    call = survival._or(lambda *args, **more: seen.append((args, more)), lambda address: None)
    call("here", node=1)
    assert seen == [(("here",), {"node": 1})]


@sample("collectives", ["lockstep", "gloo"], 0)
def test_a_program_of_one_process_needs_no_distributed_state(collectives: str) -> None:
    ended = python(
        """
        import lockstep
        from lockstep._jax_compat import backends, distributed
        from lockstep import _jax_compat
        def renamed(*_):
            raise AttributeError("no such name")
        for module in (backends, distributed, _jax_compat):
            module.distributed_client = module.check_distributed = renamed
        import jax
        print(jax.devices()[0].platform)
        """,
        env={"LOCKSTEP_COLLECTIVES": collectives},
    )
    assert (ended.status, ended.stdout) == (0, "cpu\n"), ended
    assert "AttributeError: no such name" in ended.stderr


def test_lockstep_may_be_imported_again_before_jax() -> None:
    """As test runners and programs that reload themselves do."""
    ended = python(
        """
        import sys
        import lockstep
        for name in [name for name in sys.modules if name.partition(".")[0] == "lockstep"]:
            del sys.modules[name]
        import lockstep, jax
        assert jax.config.jax_cpu_collectives_implementation == "mpi"
        """
    )
    assert ended.status == 0, ended


@pytest.mark.full
def test_jax_imported_past_the_hook_is_an_error_of_initialize() -> None:
    ended = python(
        """
        import importlib.machinery, sys
        import lockstep
        class Other:
            find_spec = importlib.machinery.PathFinder.find_spec
        sys.meta_path.insert(0, Other())
        import jax
        lockstep.initialize("127.0.0.1:1", 1, 0)
        """
    )
    assert "InitializationError: jax was imported past Lockstep's import hook" in ended.stderr


def test_variables_go_when_the_last_of_several_imports_is_over() -> None:
    from lockstep._jax_compat import importing

    with importing._in_environment({"LOCKSTEP_TEST": "1"}):
        first = importing._in_environment({"LOCKSTEP_TEST": "1"})
        first.__enter__()
    assert os.environ["LOCKSTEP_TEST"] == "1"
    first.__exit__(None, None, None)
    assert "LOCKSTEP_TEST" not in os.environ


def test_a_jax_that_is_too_new_is_named_once_and_used() -> None:
    result = run(NEW)
    assert all("sum 2.0 mpi" in result.by_process[i] for i in (0, 1)), result
    lines = [line for lines in result.stderr_by_process.values() for line in lines]
    [line] = [line for line in lines if "0.99.0" in line]
    newest = _jax_compat.dotted(_jax_compat.NEWEST_TESTED_JAX)
    assert line.startswith(f"lockstep: jax 0.99.0 is newer than {newest}, the newest that")
    assert _jax_compat.pin() in line


@pytest.mark.full
def test_an_error_of_our_hooks_names_a_jax_that_is_too_new() -> None:
    breaks = f"{NEW}\nfrom lockstep.job import topology\ntopology.this_process = None"
    result = run(breaks, status=1)
    # One process prints it for both.
    said = max(result.stderr_by_process.values(), key=len)
    assert any("'NoneType' object is not callable" in line for line in said), result
    error = next(i for i, line in enumerate(said) if "not callable" in line)
    assert any(_jax_compat.pin() in line for line in said[error:]), result


@pytest.mark.full
def test_a_bad_variable_is_an_error_of_jax_s_devices_not_of_its_import() -> None:
    source = "import lockstep, jax; print('imported', flush=True); jax.devices()"
    ended = python(source, env={"LOCKSTEP_COLLECTIVES": "nccl"})
    assert ended.stdout == "imported\n", ended
    assert "LOCKSTEP_COLLECTIVES='nccl': expected one of lockstep, gloo, mpi." in ended.stderr
