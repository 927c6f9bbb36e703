"""What a result says of its own making: the code that it measures, and the machine."""
