"""Weights and configurations of other libraries: plain dicts and tensors in and out."""
