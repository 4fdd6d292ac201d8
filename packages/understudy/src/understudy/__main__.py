"""`python -m understudy` is the command `understudy`."""

import sys

from understudy_kit import main

if __name__ == "__main__":
    sys.exit(main())
