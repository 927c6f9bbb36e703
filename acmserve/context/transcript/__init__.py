"""A conversation as text and tokens: messages, their outline, what is left out, and what each weighs."""
