"""`acmserve bench fidelity`: how far answers after an edit are from exact ones."""
