"""Works that share links and devices."""
