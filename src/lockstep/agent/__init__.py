"""The node agent of ``lockstep worker``: starts the program, and reports how it ended."""
