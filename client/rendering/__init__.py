"""Renders and their gradients."""
