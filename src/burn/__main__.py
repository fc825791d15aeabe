"""`python -m burn` is the command `burn`."""

import sys

from burn.cli.main import main

sys.exit(main())
