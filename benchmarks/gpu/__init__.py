"""The move on a GPU."""
