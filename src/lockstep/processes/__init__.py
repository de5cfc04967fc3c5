"""The processes of a job on this host: their start, guard, output, files and end."""
