"""Training: configuration, the loop, checkpoints."""
