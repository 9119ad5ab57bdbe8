"""Calls of the contract by stock stubs."""
