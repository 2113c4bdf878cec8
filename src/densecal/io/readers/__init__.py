"""Readers of array formats: one file per format, behind one small protocol."""
