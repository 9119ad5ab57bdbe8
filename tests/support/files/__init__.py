"""Writers and readers of test files: scenes, captures, robots, documents."""
