"""What several benchmarks share of agent conversations: text, server, a run with its gates, and tables of results."""
