"""``--max-restarts``: starts the whole job again after a failure.

All processes are started again, not only the one that failed, because the survivors hold
communicators of the failed job. Each attempt has its own number in the logs and its own port for
JAX's coordination service, so that late messages of the attempt before cannot reach it.
"""

from __future__ import annotations

import contextlib
import dataclasses

from lockstep.launch.job_spec import LaunchSpec
from lockstep.launch.supervisor import Supervisor
from lockstep.system import port_reservation


def run(job: LaunchSpec, lifeline: int) -> int:
    """Runs the job until it succeeds, is stopped, or has failed too often; its last status."""
    left = job.max_restarts
    with contextlib.ExitStack() as ports_held:
        while True:
            supervisor = Supervisor(job, lifeline, left)
            status = supervisor.run()
            supervisor.close()
            if left == 0 or not supervisor.may_restart:
                return status
            left -= 1
            port = ports_held.enter_context(port_reservation.reserve())
            config = dataclasses.replace(
                job.config,
                attempt=job.config.attempt + 1,
                coordinator=port_reservation.address(port),
            )
            job = dataclasses.replace(job, config=config)
