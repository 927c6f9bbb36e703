"""Which contexts may come, and which of them are worth computing before they are asked for."""
