"""The suite for one GPU, and the move of KV by itself. `suite.py` runs all of it, `kernel/main.py` the move alone."""
