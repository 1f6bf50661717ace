"""Comparison with other simulators: the same requests and step costs, in alternation."""
