"""Background chunks that are left between two layers: the flag that says when, and what the scheduler takes back."""
