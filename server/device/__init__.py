"""The device: its thread, its queue and its memory."""
