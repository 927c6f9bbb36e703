"""Budgets of sessions: meters, rates, and a conversation brought under them."""
