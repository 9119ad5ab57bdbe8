"""Processes: the command, the supervisor and the worker."""
