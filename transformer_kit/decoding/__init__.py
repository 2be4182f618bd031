"""Search over a scorer."""
