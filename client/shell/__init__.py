"""What all subcommands of `lumigrad` have in common: parsers, exit codes, and how errors are told."""
