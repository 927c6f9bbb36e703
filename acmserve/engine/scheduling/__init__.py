"""Plans carried out step by step: moves, background prefill, and redaction."""
