"""Search over a conversation, hidden text included: for the very text, and by meaning. It knows no tool."""
