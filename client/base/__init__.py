"""Helpers for every part of the client: arrays, arguments, optional packages."""
