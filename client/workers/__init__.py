"""The pool of workers, the routing of calls, and the scenes stored on workers."""
