"""What happened in a session, to be read: its messages, turns, rollout record, and events as they come."""
