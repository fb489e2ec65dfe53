"""Language models: endpoints, what they may spend, what they said before, files and recordings."""
