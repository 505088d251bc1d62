"""Parts of the backends "tensorrt" and "tensorrt-rtx": building, engines, contexts, plugins and profiles."""
