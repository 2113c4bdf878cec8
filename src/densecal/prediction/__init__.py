"""A trained model and images in, probability maps out."""
