"""The device: its thread, its queue, its memory."""
