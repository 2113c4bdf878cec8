"""Maps, or a model and images, against the truth: everything that ends in a `Record`."""
