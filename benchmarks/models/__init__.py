"""Models that benchmarks use: tiny, scripted, forced."""
