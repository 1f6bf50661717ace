"""Other simulators beside this one: the same requests, the same step costs, in alternation."""
