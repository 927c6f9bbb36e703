"""Plans carried out step by step: jumps, background prefill, and redaction."""
