"""One function per command: (config) -> result; no printing."""
