"""Edits of a session as pure functions on its state, and what an edit costs the next turn."""
