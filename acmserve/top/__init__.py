"""`acmserve top`: what the sessions of a running server cost, in a terminal. It stands on `acmserve.client` alone."""
