"""From a user's model to tasks: what is slow in it, written down in KernelBench's contract."""
