"""Searches over several runs: the capacity of a fleet, and the cheapest fleet for a workload."""
