"""What the processes of a job share: its topology, its key with all keys derived from it
(`job_key`), and JAX's key-value store.
"""
