"""The error for an array that spans processes names lockstep.gather; the hook fails soft."""

from __future__ import annotations

import pytest

from jax_compat.test_hooks import broken
from processes import python

REMOVED = broken(
    "arrays = importlib.import_module('jax._src.array')\n"
    "value = arrays.ArrayImpl._value\n"
    "arrays.ArrayImpl._value = None",  # as in a jax that reads values in another way
    "arrays.ArrayImpl._value = value",
)
READ = "import jax, numpy as np\nprint(np.asarray(jax.numpy.arange(3)).tolist())"


@pytest.mark.full
def test_the_hook_is_left_out_where_jax_has_changed() -> None:
    ended = python(REMOVED + READ)
    assert (ended.status, ended.stdout) == (0, "[0, 1, 2]\n"), ended
    [line] = [line for line in ended.stderr.splitlines() if "hook" in line]
    assert 'the hook "values of arrays" does not fit jax' in line
    assert "Lost: the note of lockstep.gather" in line


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_other_errors_and_values_are_as_they_were(collectives: str) -> None:
    ended = python(
        """
        import lockstep, jax, numpy as np
        x = jax.numpy.arange(3)
        print(np.asarray(x).tolist(), float(x[1]), jax.device_get(x).tolist())
        x.delete()
        try:
            np.asarray(x)
        except RuntimeError as error:
            print("deleted" in str(error), hasattr(error, "__notes__"))
        """,
        env={"LOCKSTEP_COLLECTIVES": collectives},
    )
    assert ended.stdout == "[0, 1, 2] 1.0 [0, 1, 2]\nTrue False\n", ended
