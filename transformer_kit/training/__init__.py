"""The loop and what it needs."""
