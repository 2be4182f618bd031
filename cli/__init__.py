"""The `tkit` command line."""
