"""Adapters for other libraries. Each file needs its own package, which nothing else in densecal needs."""
