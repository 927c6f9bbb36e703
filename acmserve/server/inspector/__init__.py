"""The page `/acm/`, which shows sessions."""
