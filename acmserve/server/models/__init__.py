"""Models that the server asks: for summaries, embeddings, maps, tokens."""
