"""python -m client: what `python -m tokenfeed.client` does."""

import runpy

if __name__ == "__main__":
    runpy.run_module("tokenfeed.client", run_name="__main__", alter_sys=True)
