"""Background chunks that are left between two layers: when that may be, and what the scheduler takes back."""
