"""Live engine as a command: settings, processes, recorded runs and their simulation."""
