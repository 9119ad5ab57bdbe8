"""Value types: cameras, scenes, meshes, worlds, and handles of stored scenes."""
