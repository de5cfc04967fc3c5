"""The parts of scripts/versions.py: what is run, where it is run, and the table of it."""
