"""``lockstep inspect`` as a person types it, and what it refuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lockstep
from lockstep.inspection import cli, plan
from processes import captured

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "inspect_step.py"
SECONDS = 120


def inspect(*words: str) -> subprocess.CompletedProcess[str]:
    return captured([sys.executable, "-m", "lockstep", "inspect", *words], timeout=SECONDS)


@pytest.mark.full
def test_a_plan_for_64_devices_on_4_hosts(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    link = ["--link", "20us,10GB/s", "--link-between", "100us,1GB/s"]
    options = ["-n", "16", "-d", "4", "--processes-per-host", "4", *link, "--json", str(file)]
    done = inspect(*options, f"{EXAMPLE}:train_step")
    assert done.returncode == 0, done.stderr
    assert "on 64 devices of 16 processes on 4 hosts" in done.stdout
    assert "data=16, model=4 (64 devices)" in done.stdout
    report = json.loads(file.read_text())
    assert report["schema"] == "lockstep.inspect/1"
    reach = {row["axes"][0]: row["reach"] for row in report["collectives"]}
    assert reach == {"model": "within a process", "data": "between hosts"}
    assert all(row["seconds"] > 0 for row in report["collectives"])
    assert {row["executions"] for row in report["collectives"]} <= {1, 6}
    assert report["memory"]["arguments"] > 0
    names = [array["name"] for array in report["inputs"]]
    assert names == ["parameters['down']", "parameters['up']", "x"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a plan in this process, which leaves the other tests' as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    # The devices of this process are those of the other tests.
    monkeypatch.setattr(plan._jax_compat, "plan_devices", lambda *_: None)
    monkeypatch.setattr(plan, "_stand_in", lambda *_: None)
    return tmp_path


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("", ["nothing.py:f"], "there is no file nothing.py"),
        ("", ["prog.py"], "write program.py:function"),
        ("", ["-n", "2", "prog.py", "f"], "what is 'f'.* write prog.py:f"),
        ("", ["prog.py:f", "g"], "what is 'g'. There is one argument, FILE:FUNCTION$"),
        ("def g(): pass", ["prog.py:f"], "prog has no function f.*It has: g"),
        ("def f(x): return x", ["prog.py:f"], r"Define a function example_args\(\)"),
        ("def f(x): return x", ["prog.py:f", "--args", "a"], "no function a .makes the arg"),
        ("def f(): return 1", ["prog.py:f", "--link-between", "1us,1GB/s"], "needs --link"),
        ("def f(): return 1", ["prog.py:f", "--costs", "none.json"], "no such file of costs"),
    ],
)
def test_bad_input_is_named(
    program: str,
    words: list[str],
    message: str,
    folder: Path,
) -> None:
    (folder / "prog.py").write_text(program)
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["inspect", *words])
    with pytest.raises(lockstep.LockstepError, match=message):
        args.func(args)


def test_an_error_of_the_program_names_the_number_of_devices(folder: Path) -> None:
    (folder / "small_mesh.py").write_text("raise ValueError('Number of devices 4 must be >= 64')")
    with pytest.raises(ValueError, match="must be >= 64") as done:
        plan.plan("small_mesh.py:f", None, 2, 2)
    [note] = done.value.__notes__
    assert "the plan is for -n 2 x -d 2 = 4 devices" in note


@pytest.mark.parametrize("link", ["20us", "1,2", "0us,1GB/s", "1us,0GB/s", "x,y"])
def test_a_link_that_cannot_be_read_is_refused(link: str) -> None:
    with pytest.raises(cli.argparse.ArgumentTypeError) as done:
        cli._link(link)
    assert "like 20us,10GB/s" in str(done.value)


def test_units_of_a_link() -> None:
    assert cli._link("20us,10GB/s") == pytest.approx((2e-5, 1e10))
    assert cli._link("1ms, 2MiB/s") == pytest.approx((1e-3, 2 << 20))


SHARDED = textwrap.dedent("""
    import io
    import lockstep, jax, jax.numpy as jnp, numpy as np
    jax.config.update("jax_num_cpu_devices", 8)
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

    auto = AxisType.Auto
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(auto,) * 3)

    def shape(sizes, *spec, on=mesh):
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(on, P(*spec)))

    def whole(x, spec=P()):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    # Advice: a resharding in a loop, an array gathered for slices, a copied argument, swapped axes.
    # XLA moves the gather of weights out of a loop, but not out of one that recomputes its layers.
    def recomputed(x, w):
        layer = jax.checkpoint(lambda h, w: jnp.tanh(h @ whole(w)))
        return jax.lax.scan(lambda h, _: (layer(h, w), None), x, None, length=5)[0].sum()

    report = lockstep.inspect(jax.grad(recomputed), shape((8, 512), "x"), shape((512, 512), "y"))
    [advice] = report.advice
    assert "the same all-gather of 512 KiB runs 5 times in a loop" in advice, report
    # A loop whose body gives its state in another sharding than it takes it.
    def turns(x):
        def body(h, _):
            h = whole(jnp.tanh(h), P("y", None))
            return whole(jnp.sin(h), P(None, "y")), None

        return jax.lax.scan(body, x, None, length=7)[0]

    report = lockstep.inspect(turns, shape((64, 64), None, "y"))
    [advice] = report.advice
    assert "what the loop carries is resharded at the end of every iteration" in advice, report
    assert "(all-to-all of 8 KiB, 7 times)" in advice
    [carried] = [row for row in report.collectives if row.carried]
    [loop] = report.to_dict()["collectives"][report.collectives.index(carried)]["loops"]
    assert loop["trips"] == 7 and loop["line"] == carried.line > 0
    # Alike rows are one; in 80 columns no operation and no type is broken.
    def alike(x):
        for _ in range(2):
            x = jnp.tanh(jax.lax.psum(x, "x"))
        return x

    mapped = jax.shard_map(alike, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
    print(lockstep.inspect(mapped, shape((64, 64), "x")))
    print(lockstep.inspect(lambda x, w: x @ w, shape((64, 32), "x"), shape((32, 64))))
    from rich.console import Console
    from lockstep.inspection import tables
    Console(width=80).print(*tables.parts(report, is_narrow=True))
    for cut in (lambda x, i: whole(x)[3:5], lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 4),
                lambda x, i: whole(x)[i] * 2):
        report = lockstep.inspect(cut, shape((64, 64), "x"), 3)
        [advice] = report.advice
        assert "gathered whole (16 KiB on each device), and only slices of it" in advice, report
    # The partitioner gathers and slices to reshard: no slices of the program.
    def turned(x):
        return whole(whole(x, P("y")) * 2, P(None, "x"))

    assert not lockstep.inspect(turned, shape((2, 8), "x")).advice
    copied = lockstep.inspect(lambda w: w * 2, shape((1024, 1024)))
    print(*copied.advice, sep="\\n")
    assert not copied.collectives and "sends nothing" in str(copied)

    far = lockstep.inspect(lambda x: x.sum(0), shape((8, 64), "x"))
    assert not far.advice, far.advice
    far = far.on(devices_per_process=4, processes_per_host=1)
    assert far.collectives[0].reach == "between hosts"
    print(*far.advice, sep="\\n")
    near = far.on(processes_per_host=2)
    assert near.collectives[0].reach == "within a host" and not near.advice
    assert far.on(devices_per_process=8).collectives[0].reach == "within a process"

    planned = AbstractMesh((2, 4), ("a", "b"), axis_types=(auto, auto))
    report = lockstep.inspect(lambda x: x @ x.T, shape((8, 8), "a", "b", on=planned))
    assert {r.axes.names for r in report.collectives} >= {("b",)}, report
    assert "<pre" in report._repr_html_() and "all-" in report._repr_html_()
    large = AbstractMesh((64,), ("a",), axis_types=(auto,))
    try:
        lockstep.inspect(lambda x: x, shape((64,), "a", on=large))
    except lockstep.InspectError as error:
        print(error)

    view = lockstep.show_sharding(shape((4, 3, 4, 8), "x", None, "y", "z"))
    assert "[2:4, :, :, :]" in str(view) and "dimension 3: 8 in 2 blocks along z" in str(view)
    assert "P(&#x27;x&#x27;" in view._repr_html_()
    many = AbstractMesh((64,), ("a",), axis_types=(auto,))
    assert "…" in str(lockstep.show_sharding(shape((128,), "a", on=many)))

    @jax.jit
    def traced(x):
        assert lockstep.show_sharding(x + 1) is None
        return x
    print("when it is compiled:")
    traced(jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("z", None))))
    print("with the mapped axis:")
    jax.jit(jax.vmap(lambda row: (lockstep.show_sharding(row), row)[1]))(
        jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("z"))))
    explicit = jax.make_mesh((8,), ("e",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        def typed(x):
            assert "8 in 8 blocks along e" in str(lockstep.show_sharding(x * 2))
            return x
        jax.jit(typed).lower(shape((8, 2), "e", on=explicit))
        def local(x):
            assert "each device has its own, along e" in str(lockstep.show_sharding(x))
            return x
        jax.jit(jax.shard_map(local, in_specs=P("e"), out_specs=P("e"))).lower(
            shape((8, 2), "e", on=explicit))
    for wrong in (np.ones(3), {"a": 1}, jax.ShapeDtypeStruct((3,), jnp.float32)):
        try:
            lockstep.show_sharding(wrong)
        except lockstep.InspectError as error:
            print(error)
    view.save("b.svg")
    view.save("b.png")
    try:
        view.save("b.gif")
    except lockstep.InspectError as error:
        print(error)
""")


def test_reports_advice_and_drawings_in_one_process(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = captured([sys.executable, "-c", SHARDED], cwd=tmp_path, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "argument w is whole on each of 8 devices (4 MiB each); sharded over x it takes 2 MiB",
        "axis x runs between hosts and moves 256 B of each device, axis y stays within a host",
        "the mesh {'a': 64} has 64 devices, and this process sees 8",
        "when it is compiled:\nfloat32[8,8]  P('z', None)",
        "with the mapped axis:\nfloat32[8,4]  P('z', None)",
        "got a ndarray of shape (3,) without a sharding",
        "got a dict",
        "│ 2 x all-reduce │",
        "flops of a device: 131 k in matrix products",
        "│ all-to-all       │  8 KiB │ y                │",
        "│ 2 x f32[1,32,32] │    x 7 │ 4 of 2           │",
        "'b.gif' must end in .png or .svg",
    ):
        assert words in done.stdout, (words, done.stdout)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "b.svg").read_text()
