"""`python -m burn` is the command `burn`."""

import sys

from burn.cli import main

sys.exit(main())
