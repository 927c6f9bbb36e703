"""What a session records of itself for training: completions and operations, in the order in which they came."""
