"""`acmserve bench scale`: time to first token after an edit, by length, place and number of holes."""
