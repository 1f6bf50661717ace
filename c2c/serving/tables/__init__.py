"""State of the serving loop as tables: no module here decides anything."""
