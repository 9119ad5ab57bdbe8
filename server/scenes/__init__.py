"""Kinds of scenes, and how a call finds its scene."""
