"""The agent of a process that Lockstep did not start: watches the program, reports how it ends."""
