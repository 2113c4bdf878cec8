"""Calibrators that are small networks over logits and images. They need PyTorch, which trains and applies them."""
