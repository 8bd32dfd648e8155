from tokenfeed.server import *  # noqa: F403
