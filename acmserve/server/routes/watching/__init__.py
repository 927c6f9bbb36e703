"""Routes for whoever looks at sessions: messages in short, and what happens while it happens."""
