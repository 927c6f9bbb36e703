"""State, branches, omissions and maps as JSON values, and what of a state has changed."""
