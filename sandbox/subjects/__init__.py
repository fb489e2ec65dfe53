"""A worker with a model and its memory: reference, baseline or candidate."""
