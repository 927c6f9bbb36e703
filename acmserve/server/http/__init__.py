"""Bodies, values and errors of HTTP, strict and bounded."""
