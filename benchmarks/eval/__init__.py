"""`acmserve eval`: right answers on the papers' tasks, with edited contexts and without."""
