"""Comparison of the live engine with its simulation, on traces that the fit has not seen."""
