"""Makes the TensorFlow models of the tests: `python make_tensorflow_models.py FOLDER`. Needs TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


class Convolutions(tf.Module):
    """A depthwise convolution, a transposed one, a resize, an einsum; free batch."""

    def __init__(self) -> None:
        tf.random.set_seed(0)
        self.depthwise = tf.Variable(tf.random.normal([3, 3, 3, 2]))
        self.transposed = tf.Variable(tf.random.normal([2, 2, 4, 6]))

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 3], tf.float32, name="x")])
    def __call__(self, x: Any) -> dict[str, Any]:
        y = tf.nn.relu6(tf.nn.depthwise_conv2d(x, self.depthwise, [1, 2, 2, 1], "SAME"))
        shape = tf.stack([tf.shape(y)[0], 8, 8, 4])
        z = tf.nn.conv2d_transpose(y, self.transposed, shape, 2, "SAME")
        z = tf.image.resize(z, [16, 12])
        return {"features": z, "scores": tf.nn.softmax(tf.einsum("bhwc,bhwd->bcd", z, z))}


class TwoInputs(tf.Module):
    """Types: int32 and bool come in, and another type goes out."""

    @tf.function(
        input_signature=[tf.TensorSpec([2, 5], tf.int32, name="words"), tf.TensorSpec([2, 5], tf.bool, name="mask")]
    )
    def __call__(self, words: Any, mask: Any) -> dict[str, Any]:
        one_hot = tf.one_hot(words, 10) * tf.cast(mask, tf.float32)[..., None]
        return {"counts": tf.reduce_sum(one_hot, 1), "best": tf.argmax(one_hot, -1)}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, module in (("convolutions", Convolutions()), ("two", TwoInputs())):
        concrete = module.__call__.get_concrete_function()
        tf.saved_model.save(module, str(folder / name), signatures={"serving_default": concrete})
        frozen = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
        (folder / f"{name}.pb").write_bytes(frozen.SerializeToString())
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4, 4, 8), name="x")
        tf.nn.top_k(x, 3, name="top")
        tf.compat.v1.nn.fused_batch_norm(x, *[tf.ones(8)] * 4, is_training=False, name="normal")
        (folder / "ends.pb").write_bytes(graph.as_graph_def().SerializeToString())
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "convolutions"))
    (folder / "convolutions.tflite").write_bytes(converter.convert())


if __name__ == "__main__":
    main()
