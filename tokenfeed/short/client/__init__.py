"""What is installed as `client`: the names of tokenfeed.client, and no modules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenfeed._links import require_package

require_package("client")

if TYPE_CHECKING:
    from tokenfeed.client import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(import_module("tokenfeed.client"), name)


def __dir__() -> list[str]:
    return dir(import_module("tokenfeed.client"))
