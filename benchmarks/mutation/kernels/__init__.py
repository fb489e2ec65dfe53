"""Correct kernels, by the shape of their work. Each is mutated by every operator that fits it."""
