"""Parts of the backend "openvino": options, queries of the runtime, and the signatures of models."""
