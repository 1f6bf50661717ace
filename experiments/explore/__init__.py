"""A page whose pictures follow its controls."""
