"""The built-in proposer: row programs from a pool of features, without a language model."""
