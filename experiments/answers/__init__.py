"""Searches over several runs."""
