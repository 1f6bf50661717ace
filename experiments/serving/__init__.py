"""Live engine as a command."""
