"""The live engine as a command: settings, processes, and what a run leaves."""
