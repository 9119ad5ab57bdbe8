"""The contract: generated messages live in `lumigrad.v1`; this package carries them."""
