"""The gRPC services: handlers, status codes, authentication and tracing."""
