"""What is installed as `server`: another name of tokenfeed.server."""

from tokenfeed._aliases import alias

alias(__name__)
