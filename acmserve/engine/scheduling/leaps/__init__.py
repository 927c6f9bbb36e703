"""What a jump is made of: runs of blocks, states of recurrent layers, and what stands between two of those."""
