"""Adapters for other people's tools; each file needs a package of its own, and nothing else in densecal needs it."""
