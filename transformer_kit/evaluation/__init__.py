"""Scores of hypotheses."""
