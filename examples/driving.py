"""Two models on one video: a detector finds vehicles, and a classifier names each of them more precisely.

    python examples/driving.py drive.mp4 annotated.mp4 \
        --detector yolov5n.onnx --detector-names coco80.txt \
        --classifier squeezenet1.1.onnx --classifier-names imagenet1000.txt

Each model has a pipeline, and decoding and encoding have threads of their own: while one frame is drawn, the vehicles
of the next one are classified, and the frame after that goes through the detector. Needs
`pip install "infersdk[cpu,video]"`.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from infersdk import models
from infersdk.image import HostImage
from infersdk.models import Classification, Classifications, Classifier, Detections
from infersdk.video import Frame, Prefetch, VideoReader, VideoWriter, paired

VEHICLES = frozenset({"bicycle", "car", "motorcycle", "bus", "train", "truck"})
#: The shortest side of a crop that a classifier gets, in pixels.
MIN_SIDE = 32
#: The lowest score of a class that is shown.
MIN_SCORE = 0.3


def only_vehicles(found: Detections) -> Detections:
    keep = np.array([label in VEHICLES for label in found.labels], bool)
    return found[keep]


def crop(frame: Frame, xyxy: Sequence[float]) -> HostImage | None:
    """The part of the frame around a box, as a view; None if it is too small."""
    width, height = frame.size
    margin = 0.1 * max(xyxy[2] - xyxy[0], xyxy[3] - xyxy[1])  # classifiers are trained on objects in their surroundings
    left, top = (max(0, int(edge - margin)) for edge in xyxy[:2])
    right, bottom = min(width, round(xyxy[2] + margin)), min(height, round(xyxy[3] + margin))
    if min(right - left, bottom - top) < MIN_SIDE:
        return None
    return HostImage(frame.pixels[top:bottom, left:right], frame.format)


def classified(
    classifier: Classifier, frames: Iterable[tuple[Frame, Detections]]
) -> Iterator[tuple[Frame, Detections, dict[int, Future[Classifications]]]]:
    """Each frame with its vehicles, and the class that each vehicle will get, by its index."""
    for frame, found in frames:
        vehicles = only_vehicles(found)
        crops = {i: part for i, box in enumerate(vehicles) if (part := crop(frame, box.xyxy)) is not None}
        yield frame, vehicles, dict(zip(crops, classifier.submit_many(crops.values()), strict=True))


def annotated(frame: Frame, vehicles: Detections, classes: dict[int, Classification]) -> Image.Image:
    image = vehicles.draw(frame)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(max(11, image.width // 60))
    for i, best in classes.items():
        left, _, _, bottom = vehicles[i].xyxy
        text = f"{best.label} {best.score:.2f}"
        box = draw.textbbox((left, bottom), text, font=font)
        draw.rectangle(box, fill="black")
        draw.text((left, bottom), text, fill="white", font=font)
    return image


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(
        description="Find vehicles in a video with one model, and classify them with another."
    )
    parser.add_argument("video")
    parser.add_argument("output", type=Path)
    parser.add_argument("--detector", type=Path, required=True, help="a YOLO model with the classes of COCO")
    parser.add_argument("--detector-names", type=Path)
    parser.add_argument("--classifier", type=Path, required=True, help="an ImageNet model that was trained with Caffe")
    parser.add_argument("--classifier-names", type=Path)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--frames", type=int, help="process at most so many frames")
    arguments = parser.parse_args(argv)

    # Two models share the processor with decoding, drawing and encoding: their idle threads must not spin.
    options = {"allow_spinning": False} if arguments.backend == "onnxruntime" else {}
    found, closer = Counter[str](), Counter[str]()
    with (
        models.load(
            arguments.detector, names=arguments.detector_names, backend=arguments.backend, **options
        ) as detector,
        Classifier(
            arguments.classifier, arguments.backend, names=arguments.classifier_names, preset="caffe", **options
        ) as classifier,
        VideoReader(arguments.video) as reader,
        VideoWriter(arguments.output, reader.size, reader.fps) as writer,
        Prefetch(classified(classifier, paired(detector.map, itertools.islice(reader, arguments.frames)))) as results,
    ):
        start = perf_counter()
        for frame, vehicles, pending in results:
            best = {i: future.result()[0] for i, future in pending.items()}
            classes = {i: one for i, one in best.items() if one.score >= MIN_SCORE}
            writer.write(annotated(frame, vehicles, classes), frame.time)
            found.update(vehicles.labels)
            closer.update(one.label for one in classes.values())
        writer.close()
        seconds = perf_counter() - start
    print(f"{writer.frames} frames in {seconds:.1f} s, {writer.frames / seconds:.1f} fps: {arguments.output}")
    print("found:", ", ".join(f"{count} x {label}" for label, count in found.most_common()) or "nothing")
    print("closer:", ", ".join(f"{count} x {label}" for label, count in closer.most_common(8)) or "nothing")
    return {"frames": writer.frames, "fps": writer.frames / seconds, "found": found, "closer": closer}


if __name__ == "__main__":
    main()
