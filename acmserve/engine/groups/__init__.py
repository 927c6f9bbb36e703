"""What KV each of vLLM's KV cache groups keeps. Pure: knows no blocks, no requests and no tensors."""
