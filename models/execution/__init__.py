"""How a wrapper's batches run: on the host, or on a CUDA device."""
