"""The HTTP service: what the commands answer, and maintenance queued by request."""
