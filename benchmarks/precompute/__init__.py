"""`acmserve bench precompute`: what the turn after an eviction waits for."""
