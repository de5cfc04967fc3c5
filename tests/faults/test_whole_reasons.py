"""The whole reason of a failure stands in the report: under no prefixes, and not cut.

jaxlib puts a prefix in front of an error for each program that it came through, and an exception
has room for 1,023 bytes.
"""

from __future__ import annotations

import pytest

from faults.harness import HEAD
from lockstep import _words
from of_this_jax import where_numbered
from processes import free_port, run_processes
from support import run_lockstep

READ_LATE = f"""{HEAD}
@jax.jit
def step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
    return w - 0.1 * g, loss

w = np.zeros(8, np.float32)
for i in range(100):
    dtype = np.uint8 if jax.process_index() == 1 and i == 3 else np.float32
    x = jax.make_array_from_process_local_data(rows, np.ones((8, 8), dtype))
    w, loss = step(w, x)
"""
PREFIX = "Error dispatching computation: "


def test_a_loss_that_is_read_a_hundred_steps_later() -> None:
    program = READ_LATE + "print(float(loss))"
    result = run_lockstep([], program, d=2, expect_status=1, forked=True)
    report = result.said_by_launcher
    assert "of 2 failed first: process 0 (pid" in report, result
    assert where_numbered("given x: u8[4,8]") in report
    assert where_numbered("Likely: different dtypes: x of step is f32[4,8] on process 0") in report
    assert PREFIX not in result.stderr


@pytest.mark.full
def test_the_program_reads_the_error_without_the_prefixes() -> None:
    program = READ_LATE + (
        "try:\n    print(float(loss))\nexcept jax.errors.JaxRuntimeError as error:\n"
        "    print(str(error).partition('lockstep: ')[0])\n    raise SystemExit(3)"
    )
    result = run_lockstep([], program, d=2, expect_status=3, forked=True)
    [said] = {line for lines in result.by_process.values() for line in lines}
    assert said in ("INTERNAL: MPI error: ", "UNKNOWN: MPI error: "), result


LONG = f"""{HEAD.replace("initialize()", "initialize({place})")}
columns = NamedSharding(rows.mesh, P(None, "x"))

@jax.jit
def train_on_a_chunk_of_batches_of_the_training_set(images, labels, weights_of_the_rows):
    def one(carry, batch):
        x, y, w = batch
        return carry + jnp.sum(jnp.sum(x, axis=1) * y * w), jnp.sum(x)
    return jax.lax.scan(one, 0.0, (images, labels, weights_of_the_rows))

for steps in [5] * 4 + [5 - jax.process_index()]:
    image, row = np.ones((steps, 36, 64), np.float32), np.ones((steps, 36), np.float32)
    arrays = [jax.make_array_from_process_local_data(columns, a) for a in (image, row, row)]
    total, _ = train_on_a_chunk_of_batches_of_the_training_set(*arrays)
    print(float(total))
"""
CAUSE = (
    "different shapes: images of train_on_a_chunk_of_batches_of_the_training_set is f32[5,18,64] "
    "on process 0, f32[4,18,64] on process 1"
)


def assert_whole(text: str) -> None:
    for process in (0, 1):
        assert f"> process {process} (pid" in text, text
    assert where_numbered(CAUSE) in text
    assert "every process the same shape" in text


def test_the_launcher_prints_what_an_exception_has_no_room_for() -> None:
    result = run_lockstep([], LONG.format(place=""), d=2, expect_status=1, forked=True)
    assert_whole(result.said_by_launcher)
    assert not _words.is_cut(result.said_by_launcher)


@pytest.mark.full
def test_a_process_prints_it_where_there_is_no_launcher() -> None:
    address = f"127.0.0.1:{free_port()}"
    environs = [{"JAX_NUM_CPU_DEVICES": "2", "RANK": str(process)} for process in range(2)]
    place = f"{address!r}, 2, int(os.environ['RANK'])"
    ended = run_processes("import lockstep\n" + LONG.format(place=place), environs)
    assert all("  and 1 process more" in end.stderr for end in ended), ended
    said = [end.stderr for end in ended if "> process" in end.stderr]
    assert said, ended
    assert_whole(said[0])
