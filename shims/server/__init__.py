"""What is installed as `server`: another name of tokenfeed.server."""

import sys

_package = sys.modules.pop(__name__)
from tokenfeed._aliases import alias

alias(_package)
