"""Each task as an `Interface`: its inputs and outputs as rows of named columns.

`opening` finds out what a folder contains. One file per task defines its columns and calls the task.
"""

from headwise.server.interfaces.opening import open_interface

__all__ = ["open_interface"]
