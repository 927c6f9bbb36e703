"""Agent conversations that several benchmarks play: their text, the server, a run with its gates, table and plot."""
