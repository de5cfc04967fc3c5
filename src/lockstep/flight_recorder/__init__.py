"""Matches the recorder files of a job: what every process was doing, and which one diverged."""
