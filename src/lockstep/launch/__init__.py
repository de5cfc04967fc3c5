"""``lockstep run`` and ``worker``: the commands, the supervisor, restarts, failure reports."""
