"""Live half of Tessera."""
