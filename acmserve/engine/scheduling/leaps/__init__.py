"""What a jump is made of: runs of blocks, holes between them, states of recurrent layers. And where one is planned."""
