"""Files of users: scenes, captures, robots, documents."""
