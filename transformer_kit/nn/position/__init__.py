"""Position encodings: one slot, three neutral hooks."""
