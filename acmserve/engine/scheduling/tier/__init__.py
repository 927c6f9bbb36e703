"""Sources that a tier below the pool holds: what brings them back, and when."""
