"""The tasks as their papers define them: format, published parameters, scorer."""
