"""Agent conversations that several benchmarks replay."""
