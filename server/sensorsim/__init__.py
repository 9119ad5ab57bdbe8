"""The rendering interface of driving simulators, on top of the scenes, jobs and limits of all calls."""
