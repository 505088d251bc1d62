"""What `Infer` stands on: device, memory, tensor, stream, files, and the binding to the native library."""
