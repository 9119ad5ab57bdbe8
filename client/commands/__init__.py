"""The client's subcommands of `lumigrad`."""
