"""Evaluation -> Reward: pure functions."""
