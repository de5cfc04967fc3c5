"""Inside a process: its rank, JAX's coordination service, and the start of the engine."""
