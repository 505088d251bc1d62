"""The protocol over HTTP: an ASGI application, and the limits of its connections."""
