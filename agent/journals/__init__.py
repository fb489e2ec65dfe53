"""A campaign's journal, and what can be told from its rows alone."""
