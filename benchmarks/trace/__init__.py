"""`acmserve bench trace`: whole conversations under a budget, with peers."""
