"""Starts the processes of a job, watches them, and reports what went wrong."""
