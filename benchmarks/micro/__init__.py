"""Benchmarks of single pieces: kernel, step, search, matcher."""
