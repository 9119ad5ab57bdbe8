"""The methods of `Client`, grouped by subject."""
