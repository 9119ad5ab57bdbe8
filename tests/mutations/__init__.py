"""Faults that are planted in the code one by one, to see that the tests find them."""
