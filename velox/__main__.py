"""`python -m velox`: the same as the `velox` command.

Knows: where the command line is. Does not know: anything else.
"""

import sys

from velox.cli import main

if __name__ == "__main__":
    sys.exit(main())
