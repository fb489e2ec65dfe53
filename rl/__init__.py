"""Training on what was measured: implements the agent's Learner protocol."""
