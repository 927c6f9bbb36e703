"""`acmserve bench memory`: blocks of the pool and host memory of one conversation, beside stock vLLM."""
