"""Threads that launch over gloo, in the same order on all processes or not."""

from __future__ import annotations

import re

import pytest

from faults.test_over_gloo import run

THREADS = """
import threading
mine = [jax.jit(lambda x: x.sum()), jax.jit(lambda x: x.max())]
x = array(4 * count)
def work(call):
    for _ in range(50):
        float(call(x))
threads = [threading.Thread(target=work, args=(call,)) for call in mine[:: 1 - 2 * me]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
HANDED_OVER = """
import queue, threading
work, done = queue.Queue(), queue.Queue()
def serve():
    while (value := work.get()) is not None:
        done.put(evaluate(value, x))
x = array(4 * count)
thread = threading.Thread(target=serve)
thread.start()
value = jax.numpy.float32(0)
for _ in range(100):
    work.put(step(value, x))
    value = done.get()
work.put(None)
print("done", float(value))
"""
WOKEN = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from jax.experimental import io_callback
call, launched = threading.Event(), threading.Event()
x = array(4 * count)

def wake(v):
    if me == 1:  # here the thread launches while the main thread is in its call
        call.set()
        launched.wait(60)
    return v

@jax.jit
def summed(x):
    def each(a):
        return io_callback(wake, jax.ShapeDtypeStruct((1,), "float32"), jax.lax.psum(a[:1], "x"))
    specs = dict(in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.shard_map(each, mesh=rows.mesh, **specs)(x)

def work():
    call.wait()
    evaluate(1.0, x).block_until_ready()
    launched.set()

for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    if sys.argv[1] == "main":
        value = summed(x)
    else:
        with ThreadPoolExecutor(1) as pool:
            value = pool.submit(summed, x).result()
    call.set()
    thread.join()
    call.clear(), launched.clear()
print("done", float(value.addressable_shards[0].data[0]))
"""


def test_threads_that_launch_in_another_order_are_an_error() -> None:
    """gloo combines whatever comes next, so such a program computed wrong numbers in silence."""
    result = run(THREADS)
    first = result.said_by_launcher.splitlines()[0]
    assert re.search(r"process [01] (runs another program|\(.*\) called _lambda)", first), result
    assert "several threads dispatch collectives (_lambda: Thread-" in result.stderr


@pytest.mark.full
def test_threads_that_take_turns_are_no_fault() -> None:
    result = run(HANDED_OVER, status=0)
    assert result.stdout.count("done 3500.0") == 2, result


@pytest.mark.full
@pytest.mark.parametrize("launching", ["main", "pool"])
def test_a_thread_that_a_callback_wakes_is_no_fault(launching: str) -> None:
    """Its launch comes after the one that the callback is in, whichever returns first."""
    result = run(WOKEN, launching, status=0)
    assert result.stdout.count("done 4.0") == 2, result
