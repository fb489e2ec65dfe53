"""A process pair: equal inputs for both sides, and the clock between "go" and "done"."""
