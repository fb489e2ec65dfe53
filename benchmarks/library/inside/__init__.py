"""Operators of an installed library, checked and timed with nothing of Warpsmith in reach: imports
torch, the library and itself, and is run as `python -S -P -m inside`.
"""
