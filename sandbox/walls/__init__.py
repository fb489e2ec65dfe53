"""The walls around every process that runs candidate code: `enclose` puts them up, `probe` reports.

What they do not do: bound memory (the supervisor polls `sandbox.machine.proc.tree_memory_bytes`),
hide the GPU's own side channels, or protect against a kernel or driver exploit.
"""
