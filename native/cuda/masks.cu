/*
 * masks.cu - the masks of the detections that a decoder has written, without a decision by the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The layout kernel computes the crop of each detection and the offset of its bits. The assembly kernel goes through
 * the crops tile by tile: 32 columns, a lane each, by 64 rows. A block first computes the activations that its tile
 * needs in shared memory; where an image is so much smaller than the canvas that they do not fit, each pixel computes
 * its own. Each value is the one that mask_math.h defines, so the bits are those of the host.
 */
#include "../src/detect.h"
#include "../src/masks.h"
#include "common.cuh"
#include "kernels.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int TILE_ROWS = 64;
constexpr int PATCH = 4096; /* activations that fit the shared memory of a block */
constexpr int MAX_IMAGES = 16;
constexpr int BLOCKS = 64; /* of an image */

/* The parameter of a launch. */
struct Run {
    const void *output, *prototypes;
    const uint8_t *detections;
    size_t output_size, prototypes_size, detections_size; /* of one image: elements, elements, bytes */
    int32_t half_output, num, max_detections;
    size_t first, anchor_step, step; /* coefficient k of anchor a is element first + a anchor_step + k step */
    int32_t width, height;
    float threshold;
    ifs_mask *masks;
    uint8_t *bits;
    int64_t capacity, *needed;
    ifs__mask_side sides[MAX_IMAGES][2];
};
static_assert(sizeof(Run) <= 4096, "every device takes a parameter of this size");

__device__ inline const ifs_cuda_detections *head_of(const Run &run, int image) {
    return (const ifs_cuda_detections *)(run.detections + image * run.detections_size);
}

/* ---- layout: one block for each image ---- */

__global__ void __launch_bounds__(THREADS) layout_kernel(const __grid_constant__ Run run) {
    __shared__ int64_t sums[WARPS];
    const int image = (int)blockIdx.x;
    const ifs__mask_side &across = run.sides[image][0], &down = run.sides[image][1];
    const ifs_cuda_detections *head = head_of(run, image);
    const ifs_detection *found = (const ifs_detection *)(head + 1);
    const int count = head->count, lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    int64_t before = 0;
    for (int start = 0; start < count; start += THREADS) {
        const int i = start + (int)threadIdx.x;
        ifs_mask mask = {};
        int64_t size = 0;
        if (i < count) {
            const ifs_detection d = found[i];
            mask.x = ifs__mask_edge(d.x1, across.first, across.end);
            mask.y = ifs__mask_edge(d.y1, down.first, down.end);
            mask.width = ifs__mask_edge(d.x2, mask.x, across.end) - mask.x;
            mask.height = ifs__mask_edge(d.y2, mask.y, down.end) - mask.y;
            mask.stride = ifs__mask_stride(mask.width);
            size = (int64_t)mask.stride * mask.height;
        }
        int64_t sum = size; /* up to this thread, within its warp */
#pragma unroll
        for (int width = 1; width < 32; width *= 2) {
            const int64_t other = __shfl_up_sync(ALL, sum, width);
            sum += lane >= width ? other : 0;
        }
        __syncthreads();
        if (lane == 31)
            sums[warp] = sum;
        __syncthreads();
        int64_t offset = before + sum - size;
        for (int w = 0; w < WARPS; w++) {
            offset += w < warp ? sums[w] : 0;
            before += sums[w];
        }
        if (i < count) {
            mask.offset = offset + size <= run.capacity ? offset : -1;
            run.masks[(size_t)image * run.max_detections + i] = mask;
        }
    }
    if (threadIdx.x == 0)
        run.needed[image] = before;
}

/* ---- assembly ---- */

template <typename T> struct Object {
    const T *prototypes;
    const float *coefficients; /* in shared memory */
    int32_t num, width;
    size_t plane;

    __device__ float activation(int32_t row, int32_t column) const {
        const T *at = prototypes + (size_t)row * width + column;
        float sum = 0;
        for (int32_t k = 0; k < num; k++)
            sum += coefficients[k] * load(at + k * plane);
        return ifs__mask_sigmoid(sum);
    }
};

/* A rectangle of activations in shared memory, or none. */
struct Patch {
    const float *values;
    int32_t left, top, width;
};

template <typename T>
__device__ float value_at(const Object<T> &object, const Patch &patch, const ifs__mask_tap &across,
                          const ifs__mask_tap &down, int32_t last_column, int32_t last_row) {
    float resized[3];
#pragma unroll
    for (int r = 0; r < 3; r++) {
        const int32_t row = min(down.index + r, last_row);
        float value[3];
#pragma unroll
        for (int c = 0; c < 3; c++) {
            const int32_t column = min(across.index + c, last_column);
            value[c] = patch.values ? patch.values[(row - patch.top) * patch.width + column - patch.left]
                                    : object.activation(row, column);
        }
        resized[r] = ifs__mask_blend(value[0], value[1], value[2], across.weight);
    }
    return ifs__mask_blend(resized[0], resized[1], resized[2], down.weight);
}

template <typename T>
__device__ void assemble_tile(const Run &run, const Object<T> &object, const ifs_mask &mask,
                              const ifs__mask_side sides[2], float *shared, int32_t x0, int32_t y0, uint8_t *bits) {
    const int32_t lane = (int32_t)threadIdx.x & 31, warp = (int32_t)threadIdx.x / 32;
    const int32_t last_column = run.width - 1, last_row = run.height - 1;
    const int32_t end_x = min(x0 + 32, mask.width) - 1, end_y = min(y0 + TILE_ROWS, mask.height) - 1;
    const ifs__mask_tap across = ifs__mask_tap_of(&sides[0], mask.x + min(x0 + lane, end_x));
    /* The taps of a side ascend or, in a mirrored image, descend: those of the ends enclose all others. */
    const int32_t left0 = __shfl_sync(ALL, across.index, 0), left1 = __shfl_sync(ALL, across.index, 31);
    const int32_t top0 = ifs__mask_tap_of(&sides[1], mask.y + y0).index;
    const int32_t top1 = ifs__mask_tap_of(&sides[1], mask.y + end_y).index;
    Patch patch = {shared, min(left0, left1), min(top0, top1), 0};
    patch.width = min(max(left0, left1) + 2, last_column) - patch.left + 1;
    const int32_t rows = min(max(top0, top1) + 2, last_row) - patch.top + 1;
    __syncthreads(); /* the patch of the tile before was read */
    if (patch.width * rows <= PATCH) {
        for (int32_t i = (int32_t)threadIdx.x; i < patch.width * rows; i += THREADS)
            shared[i] = object.activation(patch.top + i / patch.width, patch.left + i % patch.width);
    } else {
        patch.values = nullptr;
    }
    __syncthreads();
    for (int32_t y = y0 + warp; y <= end_y; y += WARPS) {
        const ifs__mask_tap down = ifs__mask_tap_of(&sides[1], mask.y + y);
        const float value = value_at(object, patch, across, down, last_column, last_row);
        const uint32_t word = __ballot_sync(ALL, x0 + lane <= end_x && value > run.threshold);
        if (lane == 0)
            *(uint32_t *)(bits + (size_t)y * mask.stride + x0 / 8) = word;
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) assemble_kernel(const __grid_constant__ Run run) {
    __shared__ float coefficients[IFS_MAX_COEFFICIENTS], shared[PATCH];
    const int image = (int)blockIdx.y;
    const ifs_cuda_detections *head = head_of(run, image);
    const ifs_detection *found = (const ifs_detection *)(head + 1);
    Object<T> object = {(const T *)run.prototypes + image * run.prototypes_size, coefficients, run.num, run.width,
                        (size_t)run.width * run.height};
    uint32_t tile = 0; /* counted over all masks, so that the blocks share them evenly */
    for (int i = 0; i < head->count; i++) {
        const ifs_mask mask = run.masks[(size_t)image * run.max_detections + i];
        const uint32_t columns = (uint32_t)(mask.width + 31) / 32;
        const uint32_t tiles = columns * ((uint32_t)(mask.height + TILE_ROWS - 1) / TILE_ROWS), first = tile;
        tile += tiles;
        uint32_t mine = first + (blockIdx.x + gridDim.x - first % gridDim.x) % gridDim.x;
        if (mask.offset < 0 || mine >= tile)
            continue;
        __syncthreads(); /* the coefficients of the mask before were read */
        const size_t at = image * run.output_size + run.first + (size_t)found[i].row * run.anchor_step;
        for (int32_t k = (int32_t)threadIdx.x; k < run.num; k += THREADS)
            coefficients[k] = run.half_output ? load((const __half *)run.output + at + k * run.step)
                                              : load((const float *)run.output + at + k * run.step);
        __syncthreads();
        uint8_t *bits = run.bits + (size_t)image * (size_t)run.capacity + mask.offset;
        for (; mine < tile; mine += gridDim.x) {
            const uint32_t t = mine - first;
            assemble_tile(run, object, mask, run.sides[image], shared, (int32_t)(t % columns) * 32,
                          (int32_t)(t / columns) * TILE_ROWS, bits);
        }
    }
}

ifs_status check_arguments(const ifs_mask_params *params, const ifs_detect_params *detect, int32_t n, size_t capacity) {
    if (!params || !detect)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "params or detect is NULL");
    IFS__TRY(ifs__check_detect_params(detect));
    if (detect->num_extra < params->num_coefficients)
        return ifs__fail(IFS_ERR_SHAPE, "the head has %d extra numbers, but the masks need %d coefficients",
                         (int)detect->num_extra, (int)params->num_coefficients);
    if (n < 0 || n > 65535)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a batch of %d images; the number must be 0 to 65535", (int)n);
    if (capacity % 4 || capacity > (size_t)1 << 40)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a capacity of %zu bytes; it must be a multiple of 4, at most 2^40",
                         capacity);
    return IFS_OK;
}

} // namespace

ifs_status ifs_cuda_masks(const ifs_mask_params *params, const ifs_detect_params *detect, const void *output,
                          const void *prototypes, const ifs_geometry *geometries, int32_t n, const void *detections,
                          ifs_mask *masks, uint8_t *bits, size_t capacity, int64_t *needed, ifs_stream *stream) {
    IFS__TRY(check_arguments(params, detect, n, capacity));
    IFS__TRY(ifs__check_stream(stream));
    if (n && (!output || !prototypes || !geometries || !detections || !masks || !needed || (capacity && !bits)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a batch of %d images, but a pointer is NULL", (int)n);
    const size_t element = detect->dtype == IFS_FLOAT16 ? 2 : 4, prototype = params->dtype == IFS_FLOAT16 ? 2 : 4;
    if ((uintptr_t)output % element || (uintptr_t)prototypes % prototype || (uintptr_t)detections % 8 ||
        (uintptr_t)masks % 8 || (uintptr_t)needed % 8 || (uintptr_t)bits % 4)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "an address is not aligned to the elements that it points to");
    const bool columns = detect->head == IFS_DETECT_HEAD_YOLOV8;
    const size_t anchors = (size_t)detect->num_anchors, before = (columns ? 4 : 5) + (size_t)detect->num_classes;
    const size_t numbers = before + (size_t)detect->num_extra;
    const size_t plane = (size_t)params->width * (size_t)params->height;
    Run run = {};
    run.output_size = anchors * numbers;
    run.prototypes_size = plane * (size_t)params->num_coefficients;
    run.detections_size = ifs_cuda_detections_nbytes(detect->max_detections, 1);
    run.half_output = detect->dtype == IFS_FLOAT16;
    run.num = params->num_coefficients;
    run.max_detections = detect->max_detections;
    run.first = columns ? before * anchors : before;
    run.anchor_step = columns ? 1 : numbers;
    run.step = columns ? anchors : 1;
    run.width = params->width;
    run.height = params->height;
    run.threshold = params->threshold;
    run.capacity = (int64_t)capacity;
    const int device = ifs_stream_device(stream);
    const cudaStream_t queue = (cudaStream_t)ifs_stream_native(stream);
    for (int32_t i = 0; i < n; i++) { /* all of them before the first launch */
        ifs__mask_side sides[2];
        IFS__TRY(ifs__mask_sides(params, &geometries[i], sides));
    }
    IFS__GUARD(device, "assembling masks");
    for (int32_t start = 0; start < n; start += MAX_IMAGES) {
        const int32_t count = n - start < MAX_IMAGES ? n - start : MAX_IMAGES;
        for (int32_t i = 0; i < count; i++)
            IFS__TRY(ifs__mask_sides(params, &geometries[start + i], run.sides[i]));
        run.output = (const uint8_t *)output + (size_t)start * run.output_size * element;
        run.prototypes = (const uint8_t *)prototypes + (size_t)start * run.prototypes_size * prototype;
        run.detections = (const uint8_t *)detections + (size_t)start * run.detections_size;
        run.masks = masks + (size_t)start * (size_t)detect->max_detections;
        run.bits = bits + (size_t)start * capacity;
        run.needed = needed + start;
        layout_kernel<<<(unsigned)count, THREADS, 0, queue>>>(run);
        IFS__CUDA(cudaGetLastError(), device, "launching the layout of masks");
        const dim3 grid(BLOCKS, (unsigned)count);
        if (params->dtype == IFS_FLOAT16)
            assemble_kernel<__half><<<grid, THREADS, 0, queue>>>(run);
        else
            assemble_kernel<float><<<grid, THREADS, 0, queue>>>(run);
        IFS__CUDA(cudaGetLastError(), device, "launching the assembly of masks");
    }
    return IFS_OK;
}
