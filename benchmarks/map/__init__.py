"""`acmserve bench map`: what a context map saves an agent."""
