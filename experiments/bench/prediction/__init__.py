"""The live engine against its own simulation, on traces that the fit has not seen."""
