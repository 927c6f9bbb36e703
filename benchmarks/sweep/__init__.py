"""`acmserve bench sweep`: budgets and policies over one long session, beside a session for each task. No engine."""
