"""A campaign's winners as files that others can use: stand-alone modules or a Python package."""
