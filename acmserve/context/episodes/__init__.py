"""Episodes of an agent's work and their dependencies, read from the transcript."""
