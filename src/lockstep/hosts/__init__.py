"""Other hosts: the agent of each, the connection to it, and the checks before a start."""
