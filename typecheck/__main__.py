"""`python -m weft.typecheck`: the command `weft`, where it is not on the path; see `command/front.py`."""

from __future__ import annotations

import sys

from weft.typecheck.command.front import main
from weft.typecheck.server.serving import serve

if __name__ == "__main__":
    sys.exit(main(serve=serve))
