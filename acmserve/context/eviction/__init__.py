"""What leaves a context when its budget is reached: the policies, and the registry that lists them."""
