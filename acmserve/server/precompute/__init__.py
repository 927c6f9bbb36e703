"""Contexts computed between turns, in time that nobody misses."""
