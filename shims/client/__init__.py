"""What is installed as `client`: another name of tokenfeed.client."""

import sys

_package = sys.modules.pop(__name__)
from tokenfeed._aliases import alias

alias(_package)
