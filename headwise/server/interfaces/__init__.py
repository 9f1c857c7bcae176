"""Each task as an `Interface`: what a served model takes and gives, as rows of named columns.

`opening` finds out what a folder is; a file for each kind of task says its columns, and asks the task.
"""

from headwise.server.interfaces.opening import open_interface

__all__ = ["open_interface"]
