"""Whether outputs are right: secret cases, their float64 truth, and what error each may have."""
