"""Common parts of the subcommands of `lumigrad`: parsers, exit codes and error messages."""
