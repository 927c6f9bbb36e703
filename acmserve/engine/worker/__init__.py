"""The worker's side: which rotation is in the keys, and the copies of a step."""
