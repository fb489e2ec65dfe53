"""The command line: what is typed becomes calls of the Python API, whose answers are printed."""
