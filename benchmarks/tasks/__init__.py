"""`acmserve bench tasks`: right answers after a fold."""
