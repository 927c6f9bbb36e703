"""Bodies, values and errors of HTTP, strict and bounded, and the places of routes."""
