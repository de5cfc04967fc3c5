"""Jobs on GPUs, where NCCL moves the data: what it did, and why it stands still.

`library` is Lockstep's profiler plug-in for NCCL, which records every collective; `watch` judges
the records of all processes when one of them waits; `gpus` gives each process its own GPUs.
"""
