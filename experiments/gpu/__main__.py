import sys

from experiments.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
