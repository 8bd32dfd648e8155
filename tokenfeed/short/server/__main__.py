"""python -m server: what `python -m tokenfeed.server` does."""

import runpy

if __name__ == "__main__":
    runpy.run_module("tokenfeed.server", run_name="__main__", alter_sys=True)
