"""Searches over several runs: a fleet's capacity, and the cheapest fleet."""
