"""Opens a model's folder as an `Interface`: the model takes and returns rows of named columns.

`opening` finds out what a folder contains: a task, whose class defines its columns, or a model without a task.
"""

from headwise.server.interfaces.opening import open_interface

__all__ = ["open_interface"]
