"""Faults that are planted in the code, one at a time, to check that the tests find them."""
