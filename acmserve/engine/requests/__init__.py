"""One request in the engine: whether its KV may be reused, its block hashes, its receipt."""
