/*
 * preprocess_batch.cuh - the constants and the parameter of a launch of the preprocessing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_PREPROCESS_BATCH_CUH
#define IFS_PREPROCESS_BATCH_CUH

#include "../src/geometry.h"
#include "../src/pixel_math.h"
#include "infersdk.h"
#include "kernels.cuh"

namespace {

#ifndef IFS__TILE_COLUMNS /* a measurement may set these three from outside */
#define IFS__TILE_COLUMNS 4
#endif
#ifndef IFS__TILE_ROWS
#define IFS__TILE_ROWS 8
#endif
#ifndef IFS__BLOCKS
#define IFS__BLOCKS 5
#endif

constexpr int TILE_COLUMNS = IFS__TILE_COLUMNS; /* of a lane: 2 or 4 */
constexpr int TILE_WIDTH = 32 * TILE_COLUMNS;
constexpr int TILE_ROWS = IFS__TILE_ROWS;
constexpr int WARPS = 4; /* in a block */
constexpr int MAX_IMAGES = 40;

enum Mode : int32_t { RESIZE, HALVES, WARP };

struct Resize {
    double scale_x, scale_y;
    ifs__cover across, down; /* the columns and rows of the canvas that the resized image covers */
};

struct Image {
    const uint8_t *data, *uv;
    int64_t stride, uv_stride;
    int32_t width, height;
    int32_t format;
    int32_t mode;
    union {
        Resize resize;
        ifs__warp warp;
    };
};

/* The parameter of a launch. */
struct Batch {
    void *dst;
    size_t image;              /* elements from an image of the output to the next */
    size_t plane;              /* from a channel to the next */
    int32_t step;              /* from a column to the next */
    int32_t order;             /* of the channels */
    int32_t width, height;     /* of the canvas */
    int32_t tiles_x, num_tiles;
    float scale[3], bias[3];
    uint8_t fill[4];
    Image images[MAX_IMAGES];
};
static_assert(sizeof(Batch) <= 4096, "every device takes a parameter of this size");

} // namespace

#endif
