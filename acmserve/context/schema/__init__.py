"""JSON schemas of tools, and arguments checked against them."""
