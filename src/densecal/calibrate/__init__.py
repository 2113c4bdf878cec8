"""Fitting calibrators on map folders, runs or image sets, and applying them to map folders."""
