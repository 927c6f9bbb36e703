"""Anthropic's form of messages: content blocks and compaction blocks."""
