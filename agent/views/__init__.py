"""What a user sees of a campaign in a terminal."""
