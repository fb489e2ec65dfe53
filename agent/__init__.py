"""The search: proposers, journal, campaign loop, Ray engine, export."""
