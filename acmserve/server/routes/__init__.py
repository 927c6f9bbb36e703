"""Routes under /v1/acm."""
