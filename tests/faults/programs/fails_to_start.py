"""The engine of process 1 fails, before or after it meets the others; then all begin to compute."""

import sys
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from lockstep._errors import EngineError
from lockstep.engine import bindings

jax.distributed.initialize()
start_engine = bindings.start


def start(options):
    if options.process == 1 and sys.argv[1] == "before":
        raise EngineError("no luck")
    start_engine(options)
    if options.process == 1:
        raise EngineError("no luck")


bindings.start = start
begun = time.monotonic()
try:
    jax.devices()
    multihost_utils.process_allgather(np.ones(1))
except (RuntimeError, ValueError) as error:
    print("raised", time.monotonic() - begun, error, flush=True)
    sys.exit(3)
