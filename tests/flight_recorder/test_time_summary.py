"""Where the time went, and the trace: adding up what the records hold."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_recorder.jobs import FAR, STEP, job, permute, steps
from flight_recorder.simulate import SECOND, STRIDE, site
from lockstep.flight_recorder.chrome_trace import MOVING, WAITING, trace
from lockstep.flight_recorder.format import Entry, Op, ProcessRecord, Ring, State
from lockstep.flight_recorder.run_records import Process, Run, Site
from lockstep.flight_recorder.time_summary import summarize

MS = 1_000_000
CLIQUE = 77


def timed(*times: tuple[int, int, int, int], shift: int = 0) -> Run:
    """Process p's only collective: entered, arrived, done in milliseconds, and its bytes."""

    def process(index: int) -> Process:
        entered, arrived, done, size = times[index]
        offset = index * shift
        entry = Entry(
            number=1,
            clique=CLIQUE,
            run_id=1000,
            op_id=1,
            elements=size // 4,
            bytes=size,
            sequence=0,
            op=Op.ALL_REDUCE,
            dtype=9,
            reduction=1,
            state=State.DONE,
            entered_ns=entered * MS + offset,
            arrived_ns=arrived * MS + offset if arrived else 0,
            done_ns=done * MS + offset,
            rank=index,
        )
        record = ProcessRecord(
            process=index,
            num_processes=len(times),
            pid=100 + index,
            host=f"h{index}",
            label=f"process {index}",
            monotonic_ns=offset,
            realtime_ns=1000 * SECOND,
            cliques=((CLIQUE, tuple(p * STRIDE for p in range(len(times)))),),
            rings=(Ring(index * STRIDE, 0, 1, (entry,)),),
        )
        return Process(index, record, (site(1000, line=41, name="step"),))

    return Run(tuple(process(i) for i in range(len(times))))


def test_time_is_split_where_the_last_one_arrived() -> None:
    (line,) = summarize(timed((10, 30, 34, 4096), (30, 30, 36, 4096))).lines
    assert (line.where, line.what) == ("train.py:41 in step", "all-reduce (sum) of 1024 x f32")
    assert (line.calls, line.bytes) == (1, 4096)
    assert line.waiting == (20 + 0) / 2 / 1000
    assert line.moving == (4 + 6) / 2 / 1000
    assert (line.slowest, line.timed) == (((1, 1),), 1)


def test_the_last_beginning_counts_where_the_engine_recorded_no_arrival() -> None:
    """Also between hosts, whose monotonic clocks have nothing in common."""
    run = timed((10, 0, 34, 4096), (30, 0, 36, 4096), shift=500 * SECOND)
    (line,) = summarize(run).lines
    assert (line.waiting, line.moving) == (0.01, 0.005)
    assert line.slowest == ((1, 1),)


def test_the_slowest_process_is_not_guessed_when_a_member_is_missing() -> None:
    whole = timed((10, 0, 34, 4096), (30, 0, 36, 4096))
    (line,) = summarize(Run((whole.processes[0], Process(1)))).lines
    assert (line.slowest, line.timed) == ((), 0)
    assert line.waiting + (line.moving or 0) == 0.024


def test_the_time_of_moving_so_little_that_it_is_not_measured_is_not_known() -> None:
    """The engine then takes the end for the moment when all had arrived."""
    (line,) = summarize(timed((10, 34, 34, 4096), (30, 34, 34, 4096))).lines
    assert (line.waiting, line.moving) == (0.014, None)
    (line,) = summarize(timed((10, 34, 34, 8192), (30, 34, 34, 8192))).lines
    assert line.moving == 0


def test_a_line_with_several_collectives_names_them_whatever_is_still_recorded() -> None:
    sizes = [640, 10, 1]
    several = [dataclasses.replace(STEP, execution=i, elements=n) for i in range(9) for n in sizes]
    for ring in (8, 16):
        (line,) = summarize(job(several, several, ring=ring).snapshot()).lines
        assert line.what == "all-reduce (sum) of 640 x f32, 10 x f32, 1 x f32"
    many = [dataclasses.replace(STEP, execution=i, elements=i + 1) for i in range(5)]
    (line,) = summarize(job(many, many).snapshot()).lines
    assert line.what == "all-reduce (sum) of 5 x f32, 4 x f32, 3 x f32, and 2 more"


def test_collectives_that_did_not_end_are_left_out_and_counted() -> None:
    found = summarize(job(steps(9), steps(5)).snapshot())
    assert (found.recorded, found.written) == (11, 11)
    assert [line.calls for line in found.lines] == [5]


def test_a_wrapped_ring_says_how_much_of_the_run_is_in_the_sums() -> None:
    found = summarize(job(steps(100), steps(100), ring=8).snapshot())
    assert (found.recorded, found.written) == (16, 200)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 90)] * 3), min_size=1, max_size=4))
def test_waiting_and_moving_are_the_whole_time_whatever_the_clocks_say(
    times: list[tuple[int, int, int]],
) -> None:
    ordered = [(min(a, c), b, max(a, c), 8) for a, b, c in times]
    (line,) = summarize(timed(*ordered)).lines
    whole = sum(done - entered for entered, _, done, _ in ordered) / len(ordered) / 1000
    assert abs(line.waiting + (line.moving or 0) - whole) < 1e-9
    assert line.waiting >= 0
    assert (line.moving or 0) >= 0


def test_a_trace_has_a_track_for_each_device_and_a_slice_for_each_collective() -> None:
    made = job(steps(9), steps(5), [*steps(5), permute(-1)])
    document = json.loads(json.dumps(trace(made.snapshot())))
    events = document["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert "process 1 (pid 101 on host a)" in names
    tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert tracks == {(p, p * STRIDE) for p in range(3)}
    slices = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in slices} == tracks
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in slices)
    whole = [e for e in slices if "args" in e]
    assert Counter(e["pid"] for e in whole) == {0: 6, 1: 5, 2: 6}
    assert whole[0]["args"]["where"] == "/home/u/train.py:41 in step"
    open_one = next(e for e in whole if e["pid"] == 0 and e["args"]["state"] == "entered")
    assert open_one["args"]["collective of the group"] == 6


def test_slices_inside_a_collective_fill_it_and_arrows_start_at_the_slowest() -> None:
    events = trace(timed((10, 30, 34, 4096), (30, 30, 36, 4096)))["traceEvents"]
    first = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert [(e["name"], e["ts"], e["dur"]) for e in first] == [
        ("all-reduce (sum) of 1024 x f32", 0, 24_000),
        (WAITING, 0, 20_000),
        (MOVING, 20_000, 4_000),
    ]
    arrows = {e["ph"]: (e["pid"], e["ts"]) for e in events if e["ph"] in "sf"}
    assert arrows == {"s": (1, 20_000), "f": (0, 20_000)}


def test_an_empty_run_is_an_empty_trace_and_an_empty_summary() -> None:
    run = Run((Process(0),))
    assert summarize(run).lines == ()
    assert [e["ph"] for e in trace(run)["traceEvents"]] == ["M", "M"]


NO_LINE = {"name": "f", "file": "", "line": 0, "used_file": "/home/u/main.py"}


@pytest.mark.parametrize(
    ("known", "lines"),
    [
        (
            (site(1000, line=41, name="step"), site(FAR, line=60, name="norm")),
            {"train.py:41 in step": 3, "train.py:60 in norm": 2},
        ),
        (
            (site(1000, used_line=3, **NO_LINE), site(FAR, used_line=9, **NO_LINE)),
            {"f (first used at main.py:3)": 3, "f (first used at main.py:9)": 2},
        ),
    ],
    ids=["lines", "first uses"],
)
def test_sites_with_the_same_call_are_lines_of_their_own(
    known: tuple[Site, ...], lines: dict[str, int]
) -> None:
    calls = [*steps(3), *[dataclasses.replace(s, program=FAR) for s in steps(2)]]
    found = summarize(job(calls, calls, sites=dict.fromkeys((0, 1), known)).snapshot())
    assert {line.where: line.calls for line in found.lines} == lines
