"""What becomes of a session's edits where its messages moved, changed or went."""
