"""The connection to one worker: channels, deadlines, retries, shared memory, tracing."""
