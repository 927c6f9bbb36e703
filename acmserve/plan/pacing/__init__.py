"""How background work keeps out of the way: what it may cost, when somebody is expected, and how long a chunk takes."""
