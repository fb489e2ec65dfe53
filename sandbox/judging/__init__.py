"""What was seen, judged: pure functions of observations and rounds."""
