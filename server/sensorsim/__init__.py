"""The rendering contract of driving simulators, on the scenes, jobs and limits of all calls."""
