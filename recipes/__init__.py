"""Whole experiments, composed with `+recipe=NAME`."""
