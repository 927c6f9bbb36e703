"""KV kernels: copy cached keys and values between slots, and turn the keys to their new positions.

Knows KV layouts, rotary embeddings and tensors. Knows nothing of requests, schedulers or vLLM. Start at `dispatch`.
"""
