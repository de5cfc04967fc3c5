"""Tracebacks without the frames of libraries."""

from __future__ import annotations

import sysconfig
import traceback

import pytest

from lockstep.processes import child_main
from lockstep.processes.tracebacks import folded, jax_shows_all, parts, place

JAX = """  File "/v/lib/python3.11/site-packages/jax/_src/array.py", line 300, in __float__
    return self._value.__float__()
           ^^^^^^^^^^^
"""
FLAX = """  File "/v/lib/python3.11/site-packages/flax/linen.py", line 3, in apply
    apply()
"""
OWN = """  File "/home/u/train.py", line 3, in main
    step()
    ^^^^^^
"""
HEAD, ERROR = "Traceback (most recent call last):\n", "ValueError: no\n    such thing\n"


def test_frames_of_libraries_become_one_line_each_in_a_row() -> None:
    text = HEAD + OWN + JAX + JAX + FLAX + OWN + JAX + ERROR
    assert folded(text) == (
        HEAD
        + OWN
        + "  ... 3 frames of jax, flax (shown with --full-tracebacks)\n"
        + OWN
        + "  ... 1 frame of jax\n"
        + ERROR
    )
    assert folded(text, full=True) == text


def test_what_is_the_users_stays_as_it_is() -> None:
    syntax = (
        f'{HEAD}{OWN}  File "/home/u/other.py", line 1\n    1 +\n       ^\nSyntaxError: invalid\n'
    )
    group = '  + Exception Group Traceback (most recent call last):\n  |   File "x.py", line 1\n'
    for text in (HEAD + OWN + ERROR, syntax, group, "KeyError: 'a'", ""):
        assert folded(text) == text


def test_python_and_the_launcher_are_libraries() -> None:
    python = f'  File "{sysconfig.get_path("stdlib")}/threading.py", line 9, in run\n    run()\n'
    ours = f'  File "{child_main.__file__}", line 9, in main\n    run()\n'
    frozen = '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
    assert folded(HEAD + ours + python + frozen + OWN + ERROR) == (
        f"{HEAD}  ... 3 frames of lockstep, Python (shown with --full-tracebacks)\n{OWN}{ERROR}"
    )


def test_a_hook_between_frames_of_jax_is_not_named() -> None:
    hook = f'  File "{child_main.__file__}", line 9, in value\n    read()\n'
    assert folded(HEAD + OWN + JAX + hook + JAX + ERROR) == (
        f"{HEAD}{OWN}  ... 3 frames of jax (shown with --full-tracebacks)\n{ERROR}"
    )


def test_the_note_of_jax_about_its_frames_goes_with_them() -> None:
    note = "-" * 20 + "\nFor simplicity, JAX has removed its internal frames from the traceback.\n"
    assert folded(HEAD + OWN + ERROR + note) == HEAD + OWN + ERROR


def test_a_repeated_line_stays_below_its_frame() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as raised:
        deep(20)
    text = "".join(traceback.format_exception(raised.value))
    assert "[Previous line repeated" in text
    assert folded(text) == text


def test_the_parts_of_an_engines_error() -> None:
    error = "jax.errors.JaxRuntimeError: UNKNOWN: MPI error: lockstep: process 1 ended\n  rows\n"
    assert parts(HEAD + OWN + error) == (HEAD + OWN, "process 1 ended\n  rows\n")
    assert parts(HEAD + OWN + ERROR) is None
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert parts(HEAD + OWN + error + during + HEAD + OWN + ERROR) is None


def test_the_line_of_an_error_is_the_innermost_of_the_users_program() -> None:
    top = '  File "/home/u/train.py", line 9, in <module>\n    main()\n'
    assert place(HEAD + top + OWN + JAX + ERROR) == "train.py:3 in main"
    assert place(HEAD + top + JAX + ERROR) == "train.py:9"
    assert place(HEAD + JAX + ERROR) == ""
    wrong = '  File "/home/u/train.py", line 7\n    for i in range(3)\n'
    assert place(f"{wrong}SyntaxError: expected ':'\n") == "train.py:7"
    assert place(HEAD + top + wrong.replace("train", "model")) == "model.py:7"


def test_jax_is_asked_for_all_frames() -> None:
    assert jax_shows_all({"JAX_TRACEBACK_FILTERING": "off"})
    assert not jax_shows_all({"JAX_TRACEBACK_FILTERING": "auto"})
    assert not jax_shows_all({})
