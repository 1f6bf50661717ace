"""This engine beside other servers of many models: one trace, the same weights, by turns."""
