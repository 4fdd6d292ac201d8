"""`python -m understudy_kit` is the command `understudy`."""

import sys

from understudy_kit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
