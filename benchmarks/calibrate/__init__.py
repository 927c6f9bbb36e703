"""`acmserve calibrate`: what moves do to one model, and how bold `auto` may be on it."""
