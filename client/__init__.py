"""The user's side."""
