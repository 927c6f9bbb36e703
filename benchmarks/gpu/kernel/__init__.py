"""The move alone, beside a copy of as many bytes: shapes, attention over what was moved, and the program."""
