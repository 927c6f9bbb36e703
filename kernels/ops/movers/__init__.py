"""Implementations of a move: C++, Triton, and the readable reference."""
