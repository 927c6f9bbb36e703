"""vLLM's private parts: every access to them, and the seams at which ours stands in for theirs."""
