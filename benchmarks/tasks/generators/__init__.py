"""Generated tasks whose answers are known."""
