"""Train, decode and compare Transformers from declarative YAML."""
