"""The common part of the subcommands of `lumigrad`: parsers, exit codes and error messages."""
