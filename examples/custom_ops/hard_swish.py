"""A custom operator, from a PyTorch module to every backend: python hard_swish.py"""

import numpy as np
import torch

import infersdk
from infersdk.custom_ops import CustomOp, torch_operator, translation_table


class HardSwish(CustomOp):
    domain = "my.company"
    inputs = {"x": "T"}
    outputs = {"y": "T"}
    types = {"T": ("float32", "float16")}
    alpha: float = 1 / 6

    def shape(self, x):
        return x

    def cpu(self, x, y):
        y[...] = x * np.clip(self.alpha * x + 0.5, 0, 1)


class Module(torch.nn.Module):
    def forward(self, x):
        return torch_operator(HardSwish)(torch.relu(x), alpha=0.2)


if __name__ == "__main__":
    x, module = torch.randn(4, 8), Module().eval()
    batch = torch.export.Dim("batch")
    table = translation_table(HardSwish)
    torch.onnx.export(
        module, (x,), "hard_swish.onnx", dynamo=True, custom_translation_table=table, dynamic_shapes={"x": {0: batch}}
    )
    for backend in ("onnxruntime", "openvino"):
        with infersdk.load("hard_swish.onnx", backend, custom_ops=[HardSwish]) as infer:
            (y,) = infer(x.numpy()).values()
            print(backend, "differs from PyTorch by", np.abs(y - module(x).numpy()).max())
