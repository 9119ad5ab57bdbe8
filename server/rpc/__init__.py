"""The services: handlers, status codes, authentication, tracing."""
