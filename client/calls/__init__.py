"""The methods of `Client` by their subject."""
