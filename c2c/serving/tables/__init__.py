"""State of the serving loop as tables."""
