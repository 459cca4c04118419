"""Data: sources by name (``sources``), partitions over clients and shards (``partition``)."""
