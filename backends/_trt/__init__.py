"""Parts of the backends "tensorrt" and "tensorrt-rtx": building, engines, contexts and profiles."""
