"""Workers: one or many, where scenes are, and what is stored on them."""
