"""Hand-written right and wrong candidates for KernelBench problems, made from small templates."""
