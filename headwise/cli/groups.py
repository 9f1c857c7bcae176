"""Writes `headwise --help`: commands in groups, in the order in which users need them, and one to try first."""

from __future__ import annotations

import click

from headwise.language import said

TRY = 'headwise view "The animal didn\'t cross because it was tired." --open'

# Group -> its commands; a command that is in no group is listed last.
GROUPS = {
    "Look": ("view", "watch", "plot", "stats", "profile", "worksheet"),
    "Check": ("doctor", "compare", "gradcheck"),
    "Build": ("bench",),
    "Train": ("train", "evaluate", "predict", "embed"),
    "Ship": ("export", "serve"),
}
WIDEST = 100  # columns of a help text, if the terminal is as wide


class Grouped(click.Group):
    """A group whose --help lists its commands by `GROUPS`, each with its `short_help`, which is never cut."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text("\b\n" + said("Try: {command}", command=TRY))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left = dict(self.commands)
        longest = max(map(len, left))  # so that the columns of all groups have the same width
        groups = {title: [(name, left.pop(name)) for name in names] for title, names in GROUPS.items()}
        for title, commands in {**groups, "Others": list(left.items())}.items():
            if commands:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(longest), each.short_help or "") for name, each in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text("'headwise COMMAND --help' says more of each.")
