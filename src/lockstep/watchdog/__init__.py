"""Finds why a collective does not end, and aborts the job with the reason."""
