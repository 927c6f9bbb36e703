"""Frameworks for agents. Each module imports its framework, and is imported by itself."""
