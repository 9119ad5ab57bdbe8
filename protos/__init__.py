"""The contract: generated messages live in `lumigrad.v1`; here is what carries them."""
