"""`infersdk demo`: detection with packaged models, without other files."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from ..image import read_image
from ..models import Classifier, YOLOv5
from ..models.composed.crops import cutter
from .common import add_backend_options, add_options, backend_arguments, print_json, print_text, stage_line, stages

DESCRIPTION = (
    "Finds the handwritten digits in a packaged image, reads each one a second time with a "
    "classifier, prints both with the time of each stage, and writes the annotated image."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("infersdk-demo.png"),
        help="the annotated image (default: %(default)s)",
    )  # fmt: skip
    add_backend_options(parser)
    add_options(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    chosen = backend_arguments(arguments)
    image = read_image(IMAGE)
    # Suppresses boxes of other classes over the same digit.
    with YOLOv5(DETECTOR, conf=0.5, class_agnostic=True, **chosen) as detector:
        detector(image)  # the first run warms up
        result = detector(IMAGE)
        timings = detector.timings
        target = f"{detector.network.backend} on {detector.network.device}, {detector.network.precision}"
    result.save(arguments.output, image)
    crops = list(cutter("box", margin=0.2)(image, result))
    with Classifier(CLASSIFIER, channel_order="rgb", top_k=1, **CLASSIFIER_SETTINGS, **chosen) as classifier:
        second_reading = [best[0] for best in classifier(crops)] if crops else []
    if arguments.json:
        print_json(
            {
                "image": str(IMAGE),
                "output": str(arguments.output),
                "backend": chosen["backend"],
                "detections": [
                    box.to_dict() | {"classifier": best.to_dict()}
                    for box, best in zip(result, second_reading, strict=True)
                ],
                "milliseconds": stages(timings),
            }
        )
        return 0
    agree = sum(box.label == best.label for box, best in zip(result, second_reading, strict=True))
    print_text(f"{len(result)} digits found by {target}")
    print_text(result.summary())
    print_text(f"the classifier reads {agree} of {len(result)} crops alike")
    print_text(stage_line(stages(timings)), "dim")
    print_text(f"annotated image: {arguments.output}")
    return 0
