"""Model wrappers: from pictures to results, on any backend."""
