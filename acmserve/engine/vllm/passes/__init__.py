"""Many holes of a request in one forward pass, in each of vLLM's model runners."""
