"""What a model is asked next: one small class per strategy, all pure functions of the attempts."""
