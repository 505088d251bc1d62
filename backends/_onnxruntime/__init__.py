"""Parts of the backend "onnxruntime": options, execution providers, sessions, memory and profiles."""
