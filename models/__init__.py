"""Model wrappers: from pictures to results, on any backend."""

if __name__ != "infersdk.models":
    raise ImportError("this folder is the package infersdk.models; import it by that name")
