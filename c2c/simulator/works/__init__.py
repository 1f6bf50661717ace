"""Works that share links and devices, in graphs, by events."""
