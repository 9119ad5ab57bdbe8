"""The web viewer: people orbit a scene in a browser, and the worker renders what they see. Needs the extra `viewer`."""
