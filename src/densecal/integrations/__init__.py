"""Adapters for other libraries. Each file needs a package that nothing else in densecal needs."""
