"""Backends: one module a runtime, imported by `infersdk.load()` on request."""

if __name__ != "infersdk.backends":
    raise ImportError("this folder is the package infersdk.backends; import it by that name")
