"""vLLM's HTTP side: every name of it that the server uses, the places where ours stand in, and their probe."""
