"""The simulator on models with several KV cache groups."""
