"""Reads and changes compiled programs (HLO)."""
