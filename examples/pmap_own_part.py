"""`pmap` on several processes: each process passes its own part, one row per local device.

    lockstep run -n 2 -d 4 examples/pmap_own_part.py

The leading size of the argument is the number of local devices, never the number of all devices:
the rows of the other processes are passed by the other processes. Another size is an error, raised
before anything is sent.
"""

from __future__ import annotations

import jax
import numpy as np


def normalise(x: jax.Array) -> jax.Array:
    return x / jax.lax.psum(x, "device")


def main() -> None:
    jax.distributed.initialize()
    local, devices = jax.local_device_count(), jax.device_count()
    apply = jax.pmap(normalise, axis_name="device")

    first = jax.process_index() * local
    part = np.arange(first + 1, first + 1 + local, dtype=np.float32)
    shares = np.asarray(apply(part))
    total = devices * (devices + 1) / 2
    shown = ", ".join(f"{share:.3f}" for share in shares)
    print(f"passed {part.tolist()}, got shares of {total:g}: {shown}")
    np.testing.assert_allclose(shares, part / total, rtol=1e-6)

    for wrong in (devices, local + 1, local - 1):
        try:
            apply(np.ones(wrong, np.float32))
        except Exception as error:
            said = str(error).splitlines()
            print(
                f"leading size {wrong}: {type(error).__name__}: {said[0] if said else '(no text)'}"
            )
        else:
            raise AssertionError(f"pmap accepted a leading size of {wrong} on {local} devices")
    print(f"only {local}, the number of local devices, is accepted")


if __name__ == "__main__":
    main()
