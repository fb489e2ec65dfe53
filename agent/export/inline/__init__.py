"""Host code that stands for cupy in a converted kernel, built by `load_inline`."""
