"""The demo: one agent conversation, one fold, one restore, and what each turn cost."""
