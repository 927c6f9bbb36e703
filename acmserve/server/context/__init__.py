"""`ContextServer`, which holds the parts of the server together, and branches that are sessions of their own."""
