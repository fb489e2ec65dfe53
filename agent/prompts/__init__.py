"""Prompt templates and their rendering; shared with training, so it imports no model client."""
