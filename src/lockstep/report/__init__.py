"""``lockstep report`` and ``lockstep top``: finding a run, and showing what its records say."""
