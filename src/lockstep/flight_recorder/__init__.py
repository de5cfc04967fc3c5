"""Recorder files, matched: what every process of a job was doing, and which one parted."""
