"""Conversations that go on beside another one: branches of the model, forks of a client, side threads of a session."""
