"""What goes by age alone: steps, what users said, and descriptions."""
