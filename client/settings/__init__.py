"""Settings of the engines and of image formats."""
