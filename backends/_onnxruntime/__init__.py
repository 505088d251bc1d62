"""What the backend "onnxruntime" is made of: its options, sessions, element types, and CUDA graphs."""
