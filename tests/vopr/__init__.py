"""The live engine in a simulated world; see `tests.vopr.__main__`."""
