"""The suite for one GPU, and the move of KV by itself. `suite.py` runs all of it, `main.py` the move alone."""
