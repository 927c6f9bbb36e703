"""Sections of the generated page of benchmarks: which numbers of which file, and what a reader has to know."""
