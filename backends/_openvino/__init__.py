"""What the backend "openvino" is made of: its options, the runtime's own answers, and a model's inputs and outputs."""
