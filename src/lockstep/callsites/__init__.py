"""Lines of the user's program: from stack frames, and from the metadata of compiled programs."""
