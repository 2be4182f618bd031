"""Schema, composition, building, run folders."""
