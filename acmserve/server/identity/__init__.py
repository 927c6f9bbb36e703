"""Which session, and which thread of it, a request belongs to."""
