"""A client of driving simulators' contract that knows names and field numbers alone, and scenes for it."""
