"""Readers of array formats: a file per format, behind one small protocol."""
