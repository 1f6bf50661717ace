"""`python -m c2c`: the command `c2c`."""

import sys
from importlib.metadata import entry_points

if __name__ == "__main__":
    (command,) = entry_points(group="console_scripts", name="c2c")
    sys.exit(command.load()())
