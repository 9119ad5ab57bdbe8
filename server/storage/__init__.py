"""What is kept between calls: scenes, forward states, trainings, files."""
