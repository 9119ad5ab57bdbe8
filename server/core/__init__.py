"""Configuration, errors, limits, accounts, logs, metrics, and the call in progress."""
