"""The context layer: messages, fragments, tools, episodes, eviction. Pure Python. Knows no vLLM, torch or plan."""
