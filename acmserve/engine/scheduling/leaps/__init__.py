"""What a jump is made of: runs of blocks, holes between them, states of recurrent layers. Where one is planned, and
which states are kept for it in front of answers."""
