"""infersdk: one stable inference interface over TensorRT, ONNX Runtime and OpenVINO."""
