"""What a plan has to respect: look-ahead of a drafter, worn keys, media, and boundaries for later edits."""
