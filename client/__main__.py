"""python -m client COMMAND: the commands of tokenfeed/tools that query a server.

The name is all that is here: no module of the client imports them.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("tokenfeed.tools", run_name="__main__", alter_sys=True)
