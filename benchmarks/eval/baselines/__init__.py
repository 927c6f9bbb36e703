"""Baselines of the papers that need no context editing: retrieval, and a memory."""
