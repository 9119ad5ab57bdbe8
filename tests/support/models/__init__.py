"""State machines that hypothesis drives."""
