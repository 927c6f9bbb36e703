"""Parts of what the server remembers of a session's requests."""
