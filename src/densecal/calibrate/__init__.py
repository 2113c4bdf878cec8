"""Calibrators where they meet files and models: fitted on map folders, runs or image sets, applied to map folders."""
