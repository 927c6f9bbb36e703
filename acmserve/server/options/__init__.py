"""What a request or the server's start may ask for, parsed."""
