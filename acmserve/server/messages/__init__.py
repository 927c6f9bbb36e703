"""Anthropic's Messages API: context management and compaction on vLLM's own route."""
