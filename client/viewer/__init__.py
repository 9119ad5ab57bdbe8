"""The web viewer: shows a scene in a browser, rendered by the worker. Needs the extra `viewer`."""
