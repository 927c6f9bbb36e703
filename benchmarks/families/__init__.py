"""Which of the model families that people serve move their KV, found by starting each of them."""
