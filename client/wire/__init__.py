"""Values as messages of the contract, and back."""
