"""Measures the five collectives on this machine, and compares implementations."""
