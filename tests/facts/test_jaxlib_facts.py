"""What Lockstep takes for granted about stock jaxlib. A new jaxlib that changes one fails here."""

from __future__ import annotations

import ast
import ctypes
import mmap
from pathlib import Path

import jax
import jaxlib
import pytest

import generate_abi
from lockstep import _jax_compat
from lockstep.callsites.farmhash import fingerprint64
from lockstep.callsites.highwayhash import hash_of_devices
from lockstep.engine import bindings
from of_this_jax import GLOO_REDUCE_SCATTER
from processes import python
from support import run_lockstep


def test_the_engine_has_every_name_that_jaxlib_resolves() -> None:
    library = _jax_compat.jaxlib_library()
    assert library is not None
    names = generate_abi.wanted_names(library)
    assert len(names) > 500, names
    engine = ctypes.CDLL(str(bindings.library_path()))
    assert [name for name in names if not hasattr(engine, name)] == []


@pytest.mark.full
def test_from_0_12_on_jaxlib_has_a_reduce_scatter_of_its_own_over_gloo() -> None:
    """docs/reference/sharp-bits.md says which releases give wrong numbers, by this."""
    gloo_s = b"ReduceScatterHalvingDoubling"
    with open(Path(jaxlib.__file__).with_name("libjax_common.so"), "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = [data.find(name) >= 0 for name in (gloo_s, b"GlooReduceScatter")]
    assert found == [GLOO_REDUCE_SCATTER, not GLOO_REDUCE_SCATTER]


def test_jaxlib_loads_the_plug_when_it_is_loaded_and_names_its_version() -> None:
    variables = {
        "MPITRAMPOLINE_LIB": str(bindings.library_path()),
        "MPITRAMPOLINE_VERBOSE": "1",
    }
    loaded = python("import jaxlib._jax", env=variables)
    assert loaded.status == 0, loaded
    assert "liblockstep.so" in loaded.stderr
    assert "2.9.0" in loaded.stderr  # the version of the MPI ABI


def test_jaxlib_ends_the_process_when_the_plug_is_missing() -> None:
    missing = {"MPITRAMPOLINE_LIB": "/no/such/library.so"}
    done = python("import jaxlib._jax; print('here')", env=missing)
    assert done.status != 0
    assert "here" not in done.stdout


TWO = {"JAX_NUM_CPU_DEVICES": "2"}
ARRIVES = """
    import re
    import jax, ml_dtypes, numpy as np
    from jax import lax
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    for name in {names!r}:
        x = np.zeros((4, 4), getattr(ml_dtypes, name, None) or name)
        for op in ("psum", "all_gather"):
            f = jax.shard_map(lambda x: getattr(lax, op)(x, "x"), mesh=mesh, check_vma=False,
                              in_specs=jax.P("x"), out_specs=jax.P("x"))
            text = jax.jit(f).lower(x).compile().as_text()
            print(name, *sorted(set(re.findall(r"= (\\w+)\\[[^=]* all-[a-z]+\\(", text))))
"""
WIDENED = {
    "float16": "f16",
    "bfloat16": "f32",
    "float8_e3m4": "f16",
    "float8_e4m3": "f16",
    "float8_e4m3b11fnuz": "f16",
    "float8_e4m3fn": "f16",
    "float8_e4m3fnuz": "f16",
    "float8_e5m2": "f16",
    "float8_e5m2fnuz": "f16",
    "float8_e8m0fnu": "f32",
    "int4": "s8",
    "uint4": "u8",
}


@pytest.mark.full
def test_xla_widens_every_narrow_type_but_float16_itself() -> None:
    done = python(ARRIVES.format(names=list(WIDENED)), env=TWO, timeout=100)
    assert done.status == 0, done
    assert set(done.stdout.splitlines()) == {f"{k} {v}" for k, v in WIDENED.items()}


PASS = """
    import jax, numpy as np
    from jax.extend import xla
    from jax.sharding import NamedSharding
    seen = []
    xla.register_hlo_module_transformation(
        lambda module: seen.append(module), name="fact", platforms="cpu")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, jax.P("x")))
    f = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, jax.P()))
    before = len(seen)
    f(x)
    print(len(seen) - before, b"all-gather" in seen[-1])
    f(x)
    print(len(seen) - before)
"""


def test_a_pass_sees_a_program_once_after_partitioning() -> None:
    done = python(PASS, env=TWO)
    assert done.stdout.split() == ["1", "True", "1"], done


DONATES = """
    import jax, numpy as np
    from jax import lax
    from jax.extend import xla
    from jax.sharding import NamedSharding
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    def donated(change):
        if change:
            xla.register_hlo_module_transformation(lambda m: m, name="same", platforms="cpu")
        f = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"),
                          out_specs=jax.P("x"), check_vma=False)
        x = jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, jax.P("x")))
        jax.block_until_ready(jax.jit(f, donate_argnums=0)(x))
        return x.is_deleted()
    print(donated(False), donated(True))
"""


def test_a_program_that_a_pass_changed_forgets_donation_before_jax_0_11() -> None:
    done = python(DONATES, env=TWO)
    keeps = str(jax.__version_info__ >= (0, 11))
    assert done.stdout.split() == ["True", keeps], done


REFUSED = """
    import sys
    import jax, numpy as np
    from jax import lax
    from jax.extend import xla
    from jax.sharding import NamedSharding
    from lockstep.hlo import float16_pass
    jax.distributed.initialize()
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.make_array_from_callback(
        (2,), NamedSharding(mesh, jax.P("x")), lambda _: np.ones(1, np.float16))
    def sum():
        f = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"),
                          out_specs=jax.P("x"), check_vma=False)
        return np.asarray(jax.jit(f)(x).addressable_shards[0].data)
    print(sum())
    xla.clear_hlo_module_transformation(float16_pass.PASS_NAME, platforms="cpu")
    jax.clear_caches()
    try:
        print(sum())
    except jax.errors.JaxRuntimeError as error:
        print(error)
    print("still running", float(jax.numpy.ones(3).sum()))
"""


@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
@pytest.mark.full
def test_xla_refuses_float16_of_the_plug_unless_the_pass_is_there(collectives: str) -> None:
    """When this fails for lockstep, XLA takes float16 and the pass can go."""
    result = run_lockstep(["--collectives", collectives], REFUSED)
    lines = [line for line in result.by_process[0] if "Gloo" not in line]
    refused = "Unsupported primitive type for reduction: f16" in lines[1]
    assert lines[0] == "[2.]", result
    assert refused == (collectives == "lockstep"), result
    assert lines[-1] == "still running 3.0", result


NUMBERS = """
import jax, os, pathlib
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from lockstep.engine import bindings
from lockstep.flight_recorder.format import OPS
from lockstep.flight_recorder.run_records import read_record

jax.distributed.initialize()
size = jax.device_count()
mesh = jax.make_mesh((size,), ("x",))
x = jax.device_put(jnp.ones((size * size, 3)), NamedSharding(mesh, P("x")))
ring = [(i, (i + 1) % size) for i in range(size)]
bodies = [
    lambda x: lax.psum(x, "x"),
    lambda x: lax.all_gather(x, "x"),
    lambda x: lax.psum_scatter(x, "x", tiled=True),
    lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    lambda x: lax.ppermute(x, "x", ring),
]
for body in bodies:
    specs = dict(mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    run = jax.jit(jax.shard_map(body, **specs))
    for time in range(3):
        if time == 2:
            jax.clear_caches()  # compiled again, and counted on
        jax.block_until_ready(run(x))
print(bindings.virtual_tables())
folder = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0", f"process_{jax.process_index()}")
for ring in read_record(folder / "recorder.bin").rings:
    print([(OPS[e.op], e.run_id, e.op_id) for e in ring.entries[-15:]])
"""


@pytest.mark.full
def test_every_collective_knows_its_program_and_its_place_in_it() -> None:
    result = run_lockstep([], NUMBERS, d=2, timeout=200)
    told = [ast.literal_eval(line) for lines in result.by_process.values() for line in lines]
    # The classes whose objects hold these numbers, and the members of a group, are found by name.
    assert told.count(3) == 2, result
    seen = [line for line in told if line != 3]
    assert len(seen) == 4
    assert all(calls == seen[0] for calls in seen), seen
    for i in range(5):
        (op, first, channel), *others = seen[0][3 * i : 3 * i + 3]
        assert channel > 0
        assert others == [(op, first + 1, channel), (op, first + 2, channel)]
    assert len({op for op, _, _ in seen[0]}) == 5


HASHES = """
import jax, numpy as np, os, pathlib
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from lockstep.flight_recorder.run_records import read_record

jax.distributed.initialize()
folder = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0", f"process_{jax.process_index()}")
devices = sorted(jax.devices(), key=lambda d: d.id)
for chosen in (devices, devices[::-1], [devices[0], devices[-1]]):
    mesh, spec, n = Mesh(np.array(chosen), ("x",)), P("x"), len(chosen)
    total = jax.shard_map(lambda x: n * lax.psum(x, "x"), mesh=mesh, in_specs=spec, out_specs=P())
    x = jax.make_array_from_callback(
        (n,), NamedSharding(mesh, spec), lambda i: np.ones(1, np.float32)
    )
    compiled = jax.jit(total).lower(x).compile()
    jax.block_until_ready(compiled(x))
    rings = read_record(folder / "recorder.bin").rings
    last = max((e for ring in rings for e in ring.entries), key=lambda e: e.entered_ns)
    print((last.run_id, compiled.runtime_executable().fingerprint, [d.id for d in chosen]))
"""


@pytest.mark.full
def test_a_programs_first_number_is_a_hash_of_it_and_its_devices() -> None:
    result = run_lockstep([], HASHES, d=8, timeout=100)  # names of more than 32 bytes
    for line in result.by_process[0] + result.by_process[1]:
        number, fingerprint, devices = ast.literal_eval(line)
        hashed = fingerprint64(fingerprint) + hash_of_devices(devices)
        assert (hashed - number) % (1 << 32) == 0, line
