"""Training: references of losses, Adam and density control."""
