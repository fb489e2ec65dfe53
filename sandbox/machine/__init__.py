"""Processes and memory of this host and its GPUs, without a word of what is judged."""
