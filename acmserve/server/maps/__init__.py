"""Context maps as requests meet them, and their updates in the background."""
