"""`acmserve bench budget`: what a token budget costs, treated in several ways."""
