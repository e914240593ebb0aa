"""The arguments of `velox import`. Apart from the command: to print how it is used needs nothing else."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of the command."""
    parser.add_argument(
        "kind",
        choices=["litellm", "litellm-prices", "litellm-db"],
        help="the proxy's configuration, its prices, or the keys, teams, users and spend of its database",
    )
    parser.add_argument("file", metavar="FILE", help="its configuration file, a dump of its database, or env:NAME")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to create (default: standard output)")
    database = parser.add_argument_group("litellm-db")
    database.add_argument("--config", metavar="FILE", help="YAML file; overrides VELOX_CONFIG")
    database.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    database.add_argument("--allow-weaker", action="store_true", help="go on although limits would hold no longer")
    database.add_argument("--zone", default="UTC", metavar="NAME", help="where LiteLLM resets budgets (default: UTC)")
