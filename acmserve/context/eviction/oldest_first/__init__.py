"""Policies that go by age alone: steps, and what users said."""
