"""What candidates are timed against: eager, compiled, and the reference against itself."""
