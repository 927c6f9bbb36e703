"""The context layer: messages, fragments, tools, episodes, eviction. Pure Python; knows no vLLM, torch or plan."""
