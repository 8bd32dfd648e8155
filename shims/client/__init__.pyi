from tokenfeed.client import *  # noqa: F403
