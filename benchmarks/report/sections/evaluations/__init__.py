"""The sections about right answers: what they have in common, of models on all tasks, and of agents."""
