"""Built-in problems in KernelBench's contract: read as text, never imported."""
