"""The text of a difference: its first line says all, and the likely cause fits."""

from __future__ import annotations

import dataclasses

from lockstep.replicas.report import Copy, Difference, text

LABELS = {p: f"process {p} (pid {100 + p} on vm)" for p in range(4)}
NAMES = {i: f"['w{i}'] (float32[4, 8])" for i in range(9)}

ONE_BIT = Difference(
    1,
    (
        Copy(((0, 0), (0, 1), (2, 20), (2, 21)), "0.25", "0x3e800000"),
        Copy(((1, 10), (1, 11)), "0.375", "0x3ec00000"),
    ),
    (2, 5),
    (1, 32, 1),
    (),
    3,
)


def test_two_values_on_three_processes() -> None:
    assert text("check_replicas", ONE_BIT, NAMES, LABELS).splitlines() == [
        "check_replicas: ['w1'] (float32[4, 8]) is not the same on processes 0-2: at [2, 5] "
        "0.25 on processes 0, 2, 0.375 on process 1",
        "  processes 0, 2: 0.25 (bits 0x3e800000)",
        "  process 1 (pid 101 on vm): 0.375 (bits 0x3ec00000) <- differs",
        "  1 of 32 elements of this piece differs",
        "Likely: silent data corruption: one bit differs, as after a fault of a device's memory. "
        "If it comes again on the same host, take that host out of the job.",
    ]


def test_one_device_of_a_process() -> None:
    copies = (
        Copy(((1, 10), (1, 12)), "0.0", "0x00000000"),
        Copy(((1, 11),), "-0.0", "0x80000000"),
    )
    first, *lines = text(
        "here", dataclasses.replace(ONE_BIT, copies=copies, position=()), NAMES, LABELS
    ).splitlines()
    assert first.endswith(
        "is not the same on devices 10-12 of process 1: 0.0 on devices 10, 12 of process 1, "
        "-0.0 on device 11 of process 1"
    )
    assert lines[1] == "  device 11 of process 1 (pid 101 on vm): -0.0 (bits 0x80000000) <- differs"


def test_another_start_on_each_process() -> None:
    copies = (Copy(((0, 0),), "0.25", "0x3e800000"), Copy(((1, 10),), "0.3", "0x3e99999a"))
    found = dataclasses.replace(
        ONE_BIT, copies=copies, parts=(1000, 1000, 977), others=(2, 3, 4, 5, 6), compared=9
    )
    lines = text("here", found, NAMES, LABELS).splitlines()
    assert lines[3] == "  1000 of 1000 parts of this piece, of 977 elements each, differ"
    assert lines[4] == (
        f"Also different: {', '.join(NAMES[i] for i in range(2, 6))} and 1 more; 9 arrays compared"
    )
    assert lines[5].startswith("Likely: each process made the array by itself, from a seed")
    assert "differs\n" not in "\n".join(lines)  # of two, none is the odd one


def test_some_elements() -> None:
    found = dataclasses.replace(ONE_BIT, parts=(3, 32, 1))
    assert "Likely: the array was changed on some processes only" in text(
        "here", found, NAMES, LABELS
    )


def test_what_cannot_be_found_is_said() -> None:
    vanished = dataclasses.replace(
        ONE_BIT,
        copies=tuple(dataclasses.replace(c, value="", bits="") for c in ONE_BIT.copies),
        position=None,
    )
    assert "by its hash; read again, all elements are the same" in text(
        "here", vanished, NAMES, LABELS
    )
    assert "the other processes have gone on" in text("here", Difference(0), NAMES, LABELS)
