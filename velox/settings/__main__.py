"""`python -m velox.settings`: print the configuration table that stands in README.md.

Knows: the table and standard output. Does not know: README.md.
"""

import sys

from velox.settings.show import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
