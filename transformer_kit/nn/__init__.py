"""Parts of a Transformer: pure torch; they know no config, file or process."""
