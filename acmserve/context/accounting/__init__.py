"""Prompts as they are rendered and served: what each message weighs in them, and what is known of the next one."""
