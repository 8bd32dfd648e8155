"""What is installed as `server`: what `python -m server` runs, and no modules."""

from tokenfeed._links import require_package

require_package("server")
