"""Bodies of the routes, as pydantic models."""
