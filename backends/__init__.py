"""Backends: one module a runtime, each imported only when it is asked for."""
