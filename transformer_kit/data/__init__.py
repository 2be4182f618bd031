"""Text to batches."""
