"""Adapters for other libraries, one module each."""
