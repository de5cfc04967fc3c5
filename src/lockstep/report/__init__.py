"""``lockstep report`` and ``lockstep top``: find a run, and show its records."""
