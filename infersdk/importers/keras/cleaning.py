"""Configurations of Keras models without code.

Keras can execute code that a configuration names, such as functions of modules or bytecode. A cleaned configuration
contains only layers, functions and settings from fixed lists. Other contents are dropped or rejected.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...errors import ModelFormatError, UnsupportedModelError
from ..conversion import missing_operators

__all__ = ["ACTIVATIONS", "DEEPEST", "LAYERS", "clean_configuration"]

#: Classes of models.
MODELS = frozenset({"Sequential", "Functional", "Model"})
_LAYERS = """
    Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average AveragePooling1D
    AveragePooling2D AveragePooling3D BatchNormalization BatchNormalizationV1 Bidirectional CategoryEncoding CenterCrop
    Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose Convolution1D Convolution2D
    Convolution2DTranspose Convolution3D Cropping1D Cropping2D Cropping3D CuDNNGRU CuDNNLSTM Deconvolution2D
    Deconvolution3D Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout ELU EinsumDense Embedding Flatten GRU
    GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity InputLayer LSTM
    LayerNormalization LeakyReLU LocallyConnected1D LocallyConnected2D Masking MaxPooling1D MaxPooling2D MaxPooling3D
    Maximum Minimum MultiHeadAttention Multiply Normalization PReLU Permute RNN RandomBrightness RandomContrast
    RandomFlip RandomRotation RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape Resizing SeparableConv1D
    SeparableConv2D SeparableConvolution1D SeparableConvolution2D SimpleRNN SlicingOpLambda Softmax SpatialDropout1D
    SpatialDropout2D SpatialDropout3D Subtract SyncBatchNormalization TFOpLambda TensorFlowOpLayer ThresholdedReLU
    TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
#: The allowed layers.
LAYERS = frozenset(_LAYERS.split())
_ACTIVATIONS = """
    elu exponential gelu hard_sigmoid hard_silu hard_swish leaky_relu linear log_sigmoid log_softmax mish relu relu6
    selu sigmoid silu softmax softplus softsign swish tanh
"""
#: The allowed activation functions.
ACTIVATIONS = frozenset(_ACTIVATIONS.split())
_FUNCTIONS = """
    abs add addv2 batchmatmulv2 bias_add biasadd cast ceil clip_by_value clipbyvalue concat concatv2 cos div divide
    equal erf exp expand_dims expanddims floor getitem greater greater_equal identity less less_equal log
    logical_and logical_not logical_or matmul max maximum mean min minimum mul multiply neg negative pack pad pow
    prod realdiv reciprocal reshape round rsqrt sign sin split splitv sqrt square squeeze stack stop_gradient sub
    subtract sum tile transpose truediv
"""
#: The allowed TensorFlow functions between layers, by the last part of their names. None of them accesses files.
FUNCTIONS = ACTIVATIONS | frozenset(_FUNCTIONS.split())
_CELLS = frozenset({"LSTMCell", "GRUCell", "SimpleRNNCell"})
_MODULES = ("keras.", "tensorflow.keras.", "tf_keras.")
#: Settings that only training or the file format needs.
_DROPPED = frozenset({"registered_name", "build_config", "compile_config", "shared_object_id"})
#: The maximum depth of a configuration.
DEEPEST = 200
_LAMBDA = "Lambda contains Python bytecode, and code in files is never executed; replace it by another layer"


def clean_configuration(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model without settings for training."""
    kind = config["class_name"]
    if kind not in MODELS:
        raise UnsupportedModelError(
            f"the model is of the class {kind!r}, whose code is not in the file; save a Sequential or Functional model"
        )
    refused: Counter[str] = Counter()
    result: dict[str, Any] = _cleaned(config, "", refused, 0)
    if refused:
        raise missing_operators("the Keras importer", refused)
    return result


def _cleaned(value: Any, key: str, refused: Counter[str], depth: int) -> Any:
    if depth > DEEPEST:
        raise ModelFormatError(f"the configuration is nested more than {DEEPEST} deep")
    if key.endswith("_initializer"):
        return "zeros"
    if key.endswith(("_regularizer", "_constraint")):
        return None
    if isinstance(value, list):
        return [_cleaned(inner, "", refused, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    kind, config = value.get("class_name"), value.get("config")
    if kind == "function" and isinstance(config, str) and config in ACTIVATIONS:
        return config
    if kind == "DTypePolicy" and isinstance(config, dict):
        return str(config.get("name", "float32"))
    if kind == "__numpy__":  # a number
        return value.get("value", config.get("value") if isinstance(config, dict) else None)
    if kind is not None and (reason := _refusal(kind, config, value.get("module"))):
        refused[reason] += 1
        return None
    return {name: _cleaned(inner, name, refused, depth + 1) for name, inner in value.items() if name not in _DROPPED}


def _refusal(kind: Any, config: Any, module: Any) -> str:
    """The reason why an object is rejected; empty if it is allowed."""
    if kind in ("Lambda", "__lambda__"):
        return _LAMBDA
    if not isinstance(kind, str) or kind not in LAYERS | MODELS | _CELLS | {"__keras_tensor__"}:
        return f"function {config!r}" if kind == "function" else str(kind)
    if module is not None and not (isinstance(module, str) and f"{module}.".startswith(_MODULES)):
        return f"{module}.{kind}"
    if kind in ("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"):
        function = _function(kind, config)
        if function.rpartition(".")[2].removeprefix("reduce_").lower() not in FUNCTIONS:
            return f"{kind} of the function {function!r}"
    return ""


def _function(kind: str, config: Any) -> str:
    """The name of the TensorFlow function that a layer calls."""
    if not isinstance(config, dict):
        return ""
    if kind != "TensorFlowOpLayer":
        return str(config.get("function"))
    node = config.get("node_def")
    return str(node.get("op") if isinstance(node, dict) else None)
