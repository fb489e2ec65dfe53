"""One self-contained page, and a Markdown summary, of a campaign's journal or a bench's records."""
