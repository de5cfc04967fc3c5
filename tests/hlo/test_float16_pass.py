"""The pass that widens float16 collectives: message editing and effect."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanes import sample
from lockstep import _jax_compat
from lockstep.hlo import float16_pass
from lockstep.hlo.proto import Field, HloProgram, Message
from lockstep.hlo.size_limits import COLLECTIVES
from of_this_jax import needs_float16_pass
from processes import captured
from support import run_lockstep

PROGRAM = pathlib.Path(__file__).parent / "programs" / "low_precision.py"

numbers = st.integers(1, 2**29 - 1)
fields = st.one_of(
    st.builds(lambda n, v: Field(n, 0, v), numbers, st.integers(0, 2**64 - 1)),
    st.builds(lambda n, v: Field(n, 2, v), numbers, st.binary(max_size=300)),
    st.builds(lambda n, v: Field(n, 1, v), numbers, st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: Field(n, 5, v), numbers, st.binary(min_size=4, max_size=4)),
)


@given(st.lists(fields))
def test_a_message_survives_a_round_trip(content: list[Field]) -> None:
    assert Message.parse(Message(content).encode()).fields == content


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    try:
        message = Message.parse(data)
    except ValueError:
        return
    assert Message.parse(message.encode()).fields == message.fields


@pytest.mark.parametrize("data", [b"\x80", b"\x0a\x05ab", b"\x0b", b"\x09abc"])
def test_a_truncated_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"protocol buffer|wire type 3 of field 1"):
        Message.parse(data)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_repeated_integers_are_read_packed_and_not(values: list[int]) -> None:
    packed = Message()
    packed.set_integers(36, values)
    loose = Message([Field(36, 0, value) for value in values])
    assert Message.parse(packed.encode()).integers(36) == values
    assert loose.integers(36) == values


def test_set_replaces_every_occurrence_in_place() -> None:
    message = Message([Field(1, 0, 7), Field(2, 0, 1), Field(3, 0, 9), Field(2, 0, 5)])
    message.set(2, 8)
    assert message.fields == [Field(1, 0, 7), Field(2, 0, 8), Field(3, 0, 9)]


def test_a_program_without_collectives_is_left_alone() -> None:
    module = Message([Field(1, 2, b"jit_f")]).encode()
    assert float16_pass.widen(HloProgram(module, COLLECTIVES)) is None


@needs_float16_pass
@pytest.mark.parametrize(
    ("job", "platform", "registered"),
    [(True, "cpu", True), (True, "gpu", False), (False, "cpu", False)],
)
def test_the_pass_is_registered_for_cpu_devices_of_a_job_alone(
    monkeypatch: pytest.MonkeyPatch, job: bool, platform: str, registered: bool
) -> None:
    done: list[str] = []
    client = object() if job else None
    monkeypatch.setattr(_jax_compat, "distributed_client", lambda: client)
    monkeypatch.setattr(_jax_compat, "has_passes", lambda: True)
    monkeypatch.setattr(_jax_compat, "register_pass", lambda name, _: done.append(name))
    monkeypatch.setattr(_jax_compat, "add_to_cache_key", lambda part: None)
    assert float16_pass.register_when_needed(platform) == job  # a job may begin later
    assert bool(done) == registered


@pytest.mark.full
def test_single_process_programs_compute_the_same_through_the_pass() -> None:
    environ = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "LOCKSTEP_COLLECTIVES": "gloo",  # it imports Lockstep's pass after jax
    }
    for option in (["--widen"], []):
        command = [sys.executable, str(PROGRAM), "--dtypes", "float16,float8_e4m3fn", *option]
        done = captured(command, env=environ, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "derivatives right" in done.stdout
        # Without the pass float16 must be there: otherwise the program tests nothing.
        assert ("16 right, 0 with float16" in done.stdout) == bool(option), done.stdout


@needs_float16_pass
@sample("types", ["float16", "float8_e4m3fn,bfloat16,float8_e5m2"], 0)
def test_narrow_types_over_the_engine(types: str) -> None:
    result = run_lockstep(
        [], PROGRAM, d=2, timeout=150, program_args=["--dtypes", types], forked=True
    )
    assert result.stdout.count("16 right, 0 with float16") == 2 * len(types.split(",")), result
    assert result.stdout.count("derivatives right") == 2, result


CACHED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
rows = np.arange(128, dtype=np.float16) % 7
x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, P("x")), lambda i: rows[i])
total = jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
total = np.asarray(jax.jit(total)(x))
print("right" if (total == rows[:64] + rows[64:]).all() else total)
"""


@pytest.mark.full
@needs_float16_pass
@pytest.mark.parametrize("order", [("lockstep", "gloo"), ("gloo", "lockstep"), ("mpi", "gloo")])
def test_a_compilation_cache_may_be_shared_with_gloo(
    order: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """Process 0 reads and writes the cache; with the other's program the job hung."""
    for collectives in order:
        options = ["--collectives", collectives]
        result = run_lockstep(options, CACHED, d=1, program_args=[str(tmp_path)], forked=True)
        said = [line for lines in result.by_process.values() for line in lines]
        assert [line for line in said if "Gloo" not in line] == ["right", "right"], result


@pytest.mark.slow
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_every_narrow_type_is_right_with_gloo_and_with_the_engine(collectives: str) -> None:
    result = run_lockstep(["--collectives", collectives], PROGRAM, d=2, timeout=280, forked=True)
    assert result.stdout.count("16 right") == 2 * 9, result
    assert result.stdout.count("derivatives right") == 2, result


def test_where_the_pass_has_no_place_the_error_says_what_to_do(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "half.py"
    program.write_text(
        """
import sys
for name in ("jax._src.xla_transform", "jax.extend.xla"):
    sys.modules[name] = None  # as with a jax before 0.10.2
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("x",))
total = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P(), out_specs=P())
jax.block_until_ready(jax.jit(total)(jnp.ones(3, jnp.float16)))
"""
    )
    result = run_lockstep([], program, timeout=100, expect_status=1, forked=True)
    assert "Unsupported primitive type" in result.stderr, result
    assert "from jax 0.10.2 on Lockstep makes them work" in result.stderr, result
