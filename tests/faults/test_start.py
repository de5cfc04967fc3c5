"""A process dies while the job begins: the others do not wait for it, wherever they are by then."""

from __future__ import annotations

from faults.harness import PROGRAMS
from lanes import sample
from support import assert_unsaid, run_lockstep


@sample(
    ("moment", "culprit"),
    [
        ("before its first word", 1),
        ("before it hears the first word", 1),
        ("before its engine starts", 0),
        ("before its last word", 1),
        ("before it watches", 0),
        ("as it watches", 1),
    ],
    2,
)
def test_a_process_that_dies_at_the_start_is_not_waited_for(moment: str, culprit: int) -> None:
    # The launcher leaves the others alone for half of the grace.
    result = run_lockstep(
        ["--grace", "60"],
        PROGRAMS / "dies_at_the_start.py",
        n=3,
        program_args=[str(culprit), moment],
        expect_status=137,
    )
    assert result.by_process[culprit][-1].startswith("planted "), result
    for survivor in {0, 1, 2} - {culprit}:
        (said,) = result.by_process[survivor]
        word, _, text = said.split(" ", 2)
        assert word == "raised", result
        assert f"process {culprit} " in text, result
        assert "was killed by SIGKILL" in text, result
    assert_unsaid("killed because they did not end", result.stderr)
