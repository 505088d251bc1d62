/*
 * detect_run.cuh - the parameter of a run of the detection, and how it reads an output.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DETECT_RUN_CUH
#define IFS_DETECT_RUN_CUH

#include "../src/fmath.h"
#include "infersdk.h"
#include "kernels.cuh"

namespace {

constexpr int SCAN_THREADS = 256;
constexpr int STAGE = 1024;   /* candidates that a block of scan collects before it appends them */
constexpr int THREADS = 512;  /* of finish, merge and emit */
constexpr int SUPPRESS_THREADS = 256; /* a task of it is one class, often a small one */
constexpr int SELECT_THREADS = 1024;
constexpr int CHUNK = 2048; /* keys that a block sorts */
constexpr int SMALL = 512;  /* candidates of an image that one block handles to the end: one tile of NMS */
constexpr int MAX_IMAGES = 48;
constexpr uint32_t MIN_CAPACITY = 65536; /* candidates of an image that fit the workspace, if there can be as many */

struct Image {
    double to_source[6];
    int32_t source_width, source_height;
    int32_t canvas_width, canvas_height;
};

/* The parameter of a launch. */
struct Run {
    const void *output;
    size_t output_size; /* elements of one image's output */
    int32_t n;
    int32_t head, half, num_anchors, num_classes, row_length;
    int32_t multi_label, by_class;
    float conf, iou;
    int32_t num_strides;
    int32_t strides[IFS_MAX_STRIDES];
    uint32_t capacity;       /* keys of an image that fit */
    uint32_t max_candidates; /* at most `capacity` */
    int32_t max_detections;
    /* The workspace: image i's part of an array starts at i times its length. */
    uint32_t *num_candidates; /* found by the scan, including those beyond `capacity` */
    uint32_t *num_members;    /* elements of `members` in use */
    uint32_t *class_bits;  /* a bit for each class that counts, of all images; NULL: all count */
    uint64_t *keys;        /* [capacity]; in suppress the ranks of kept boxes */
    uint64_t *ranked;      /* [max_candidates] in order */
    float4 *boxes;         /* [max_candidates] in order */
    int32_t *classes;      /* [max_candidates] in order */
    uint8_t *kept;         /* [max_candidates] in order */
    uint32_t *members;     /* [max_candidates] the ranks of a class, ascending */
    uint8_t *out;
    size_t out_size; /* of an image */
    Image images[MAX_IMAGES];
};
static_assert(sizeof(Run) <= 4096, "every device takes a parameter of this size");

/* ---- the output of one image ---- */

template <typename T> __device__ inline const T *output_of(const Run &run, int image) {
    return (const T *)run.output + image * run.output_size;
}

template <typename T> __device__ ifs__box decode(const Run &run, int image, uint32_t anchor) {
    const T *at = output_of<T>(run, image);
    const bool columns = run.head == IFS_DETECT_HEAD_YOLOV8;
    const size_t step = columns ? (size_t)run.row_length : 1;
    at += columns ? (size_t)anchor : (size_t)anchor * (size_t)run.row_length;
    const float x = load(at), y = load(at + step), w = load(at + 2 * step), h = load(at + 3 * step);
    if (run.head != IFS_DETECT_HEAD_YOLOX)
        return ifs__box_of_center(x, y, w, h);
    const Image &p = run.images[image];
    int32_t cell = (int32_t)anchor, level = 0;
    for (; level + 1 < run.num_strides; level++) {
        const int32_t cells = (p.canvas_width / run.strides[level]) * (p.canvas_height / run.strides[level]);
        if (cell < cells)
            break;
        cell -= cells;
    }
    const int32_t stride = run.strides[level], width = p.canvas_width / stride;
    return ifs__box_of_cell(x, y, w, h, cell % width, cell / width, stride);
}

} // namespace

#endif
