"""What the routes answer, as JSON."""
