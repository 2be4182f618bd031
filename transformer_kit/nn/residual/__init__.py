"""Where the norms stand around a sub-layer."""
