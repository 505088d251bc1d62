"""The native kernels as plain functions over NumPy arrays."""
