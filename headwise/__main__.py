"""`python -m headwise` is the command `headwise`."""

import sys

from headwise.cli import main

sys.exit(main())
