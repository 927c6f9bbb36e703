"""`acmserve bench trace`: whole conversations under a budget, beside peers."""
