"""Speculative exactness: an answer is drafted on moved KV, verified on exact KV, and shown when it is verified."""
