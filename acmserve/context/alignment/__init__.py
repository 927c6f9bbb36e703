"""Which message of a history that a client resends is which entry of a transcript, however it is spelled."""
