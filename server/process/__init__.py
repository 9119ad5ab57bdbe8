"""Processes: the command, the supervisor, the worker."""
