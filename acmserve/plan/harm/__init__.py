"""How much moved KV changed answers that were given, and what follows for the next ones."""
