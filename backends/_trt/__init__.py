"""What the backends "tensorrt" and "tensorrt-rtx" are made of."""
