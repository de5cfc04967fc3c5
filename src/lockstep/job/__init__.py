"""What the processes of a job share: its topology, its key, and JAX's key-value store."""
