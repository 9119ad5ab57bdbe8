"""Shared-memory lanes to clients on the same machine."""
