"""A campaign, round by round: whose turn it is, what it may spend, when it is done."""
