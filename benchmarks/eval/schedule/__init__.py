"""The course of a run: what is played beside what, how fast, and what is kept of it."""
