"""Several API server processes as one: each session has an owner, and the others hand its requests over."""
