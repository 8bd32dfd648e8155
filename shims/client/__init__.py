"""What is installed as `client`: another name of tokenfeed.client."""

from tokenfeed._aliases import alias

alias(__name__)
