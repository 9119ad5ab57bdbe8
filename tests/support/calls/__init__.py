"""Calls of the protocol with generated stubs."""
