"""A small model learns to fold: scripted rollouts, training on a CPU, and held-out tasks on the real server."""
