"""Models, as vLLM builds and runs them: a small build, a recorded forward pass, a drafter, the rule for images."""
