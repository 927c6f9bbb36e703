"""Commands that an agent runs: whether they change something."""
