"""How large a picture may be; the command line shows it, so nothing is imported here."""

MAX_PIXELS = 1 << 26
"""Larger files are refused before they are decoded; 67 megapixels is 8,192 x 8,192."""
