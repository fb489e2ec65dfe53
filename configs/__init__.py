"""YAML presets, one folder per verb, shipped as package data."""
