"""``lockstep doctor``: checks the installation and the machine, and suggests fixes."""
