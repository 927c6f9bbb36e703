"""What the turns of a session cost: a record of each, and sums over the session's life."""
