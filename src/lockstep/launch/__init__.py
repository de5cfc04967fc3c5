"""The command line: starting the processes of a job, watching them, and saying what went wrong."""
