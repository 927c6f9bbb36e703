"""The engine layer: plans carried out in vLLM. Knows no HTTP and no messages."""
