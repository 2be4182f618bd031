"""Grids of runs and their tables."""
