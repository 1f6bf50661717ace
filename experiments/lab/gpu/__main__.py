import sys

from experiments.lab.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
