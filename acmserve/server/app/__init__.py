"""The server put together: vLLM's endpoint plugin, start-up, `acmserve serve`."""
