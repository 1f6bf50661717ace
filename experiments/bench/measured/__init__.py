"""The cost model beside public measurements: `python -m experiments.bench.measured`."""
