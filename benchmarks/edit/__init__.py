"""`acmserve bench edit`: time to first token after a context edit."""
