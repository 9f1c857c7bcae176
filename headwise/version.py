"""The version of headwise, also for code that runs from its sources without an installed package."""

__version__ = "0.2.0"
