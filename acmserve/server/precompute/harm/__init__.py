"""Measures in idle time what moved KV did to the answers of sessions."""
