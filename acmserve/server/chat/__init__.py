"""One chat request: its turn, the tool loop, the answer joined from its steps."""
