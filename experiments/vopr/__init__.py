"""The live engine in a simulated world; see `experiments.vopr.__main__`."""
