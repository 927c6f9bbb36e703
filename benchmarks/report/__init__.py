"""One page of all results."""
