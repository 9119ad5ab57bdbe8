"""A client of driving simulators' contract that knows only names and field numbers, and scenes for it."""
