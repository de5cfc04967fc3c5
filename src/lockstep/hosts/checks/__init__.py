"""Checks of the hosts of a job before it starts: what is asked, and what is wrong."""
