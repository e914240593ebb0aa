"""`python -m velox.settings`: print one table of all settings, as docs/settings.md has them by topic.

Knows: the table and standard output. Does not know: the page.
"""

import sys

from velox.settings.show import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
