/*
 * class_maps.cu - the class of each pixel of a batch of images.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The first kernel finds the best class at each point of the scores, the second one the class of each pixel: that of
 * the four points around it where they agree, else the best of the interpolated scores. Each value is the one that
 * class_map_math.h defines, so the maps are those of the host.
 */
#include "../src/class_map.h"
#include "common.cuh"
#include "kernels.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int MAX_IMAGES = 16;
constexpr int BLOCKS = 256; /* of an image */

struct Image {
    ifs__mask_side sides[2];
    int32_t width, height;
    int64_t offset;
};

/* The parameter of a launch. */
struct Run {
    const void *scores;
    uint8_t *best, *out;
    size_t plane, step; /* class c of point i is element c plane + i step */
    int32_t classes, width, height;
    float threshold;
    Image images[MAX_IMAGES];
};
static_assert(sizeof(Run) <= 4096, "every device takes a parameter of this size");

template <typename T> __global__ void __launch_bounds__(THREADS) best_kernel(const __grid_constant__ Run run) {
    const size_t points = (size_t)run.width * run.height;
    const T *scores = (const T *)run.scores + blockIdx.y * points * (size_t)run.classes;
    uint8_t *best = run.best + blockIdx.y * points;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < points; i += (size_t)gridDim.x * THREADS) {
        const T *at = scores + i * run.step;
        float highest = -INFINITY;
        int32_t found = 0;
        for (int32_t c = 0; c < run.classes; c++) {
            const float score = load(at + (size_t)c * run.plane);
            found = score > highest ? c : found;
            highest = score > highest ? score : highest;
        }
        best[i] = (uint8_t)(run.classes == 1 ? highest > run.threshold : found);
    }
}

template <typename T>
__device__ uint8_t interpolated(const Run &run, const T *scores, const ifs__class_tap &across,
                                const ifs__class_tap &down) {
    const size_t top = (size_t)down.index * run.width, bottom = (size_t)down.next * run.width;
    float highest = -INFINITY;
    int32_t found = 0;
    for (int32_t c = 0; c < run.classes; c++) {
        const T *plane = scores + (size_t)c * run.plane;
        const float score = ifs__class_blend(
            load(plane + (top + across.index) * run.step), load(plane + (top + across.next) * run.step),
            load(plane + (bottom + across.index) * run.step), load(plane + (bottom + across.next) * run.step),
            across.weight, down.weight);
        if (score > highest) {
            highest = score;
            found = c;
        }
    }
    return (uint8_t)(run.classes == 1 ? highest > run.threshold : found);
}

template <typename T> __global__ void __launch_bounds__(THREADS) map_kernel(const __grid_constant__ Run run) {
    const Image &image = run.images[blockIdx.y];
    const ifs__mask_side &columns = image.sides[0], &rows = image.sides[1];
    const size_t points = (size_t)run.width * run.height;
    const T *scores = (const T *)run.scores + blockIdx.y * points * (size_t)run.classes;
    const uint8_t *best = run.best + blockIdx.y * points;
    uint8_t *out = run.out + image.offset;
    for (int32_t y = (int32_t)blockIdx.x; y < image.height; y += (int32_t)gridDim.x) {
        const bool row_shown = y >= rows.first && y < rows.end;
        const ifs__class_tap down = ifs__class_tap_of(&rows, row_shown ? y : rows.first);
        const uint8_t *top = best + (size_t)down.index * run.width, *bottom = best + (size_t)down.beside * run.width;
        for (int32_t x = (int32_t)threadIdx.x; x < image.width; x += THREADS) {
            uint8_t found = IFS_NO_CLASS;
            if (row_shown && x >= columns.first && x < columns.end) {
                const ifs__class_tap across = ifs__class_tap_of(&columns, x);
                found = top[across.index];
                if (found != top[across.beside] || found != bottom[across.index] || found != bottom[across.beside])
                    found = interpolated(run, scores, across, down);
            }
            out[(size_t)y * image.width + x] = found;
        }
    }
}

template <typename T> cudaError_t launch(const Run &run, int32_t n, cudaStream_t queue) {
    const size_t tiles = ((size_t)run.width * run.height + THREADS - 1) / THREADS;
    best_kernel<T><<<dim3((unsigned)(tiles < BLOCKS ? tiles : BLOCKS), (unsigned)n), THREADS, 0, queue>>>(run);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    map_kernel<T><<<dim3(BLOCKS, (unsigned)n), THREADS, 0, queue>>>(run);
    return cudaGetLastError();
}

} // namespace

ifs_status ifs_cuda_class_maps(const ifs_class_map_params *params, const void *scores, const ifs_geometry *geometries,
                               int32_t n, uint8_t *workspace, size_t workspace_nbytes, uint8_t *class_ids,
                               size_t nbytes, ifs_stream *stream) {
    if (!params || n < 0 || n > 65535 || (n && (!scores || !geometries || !workspace || !class_ids)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "class maps of %d images; the number is 0 to 65535, and no pointer may be NULL", (int)n);
    IFS__TRY(ifs__check_stream(stream));
    Run run = {};
    const bool planes = params->layout == IFS_LAYOUT_CHW;
    size_t used = 0;
    for (int32_t i = 0; i < n; i++) { /* all of them before the first launch */
        IFS__TRY(ifs__class_map_sides(params, &geometries[i], run.images[0].sides));
        used += ((size_t)geometries[i].source_width * (size_t)geometries[i].source_height + 255) & ~(size_t)255;
    }
    const size_t points = (size_t)params->width * (size_t)params->height,
                 element = params->dtype == IFS_FLOAT16 ? 2 : 4;
    if (used > nbytes || points * (size_t)n > workspace_nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL,
                         "class maps of %d images need %zu bytes and a workspace of %zu, but these have %zu and %zu",
                         (int)n, used, points * (size_t)n, nbytes, workspace_nbytes);
    if ((uintptr_t)scores % element)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the scores %p are not aligned to their elements of %zu bytes",
                         scores, element);
    run.plane = planes ? points : 1;
    run.step = planes ? 1 : (size_t)params->num_classes;
    run.classes = params->num_classes;
    run.width = params->width;
    run.height = params->height;
    run.threshold = params->threshold;
    run.out = class_ids;
    const int device = ifs_stream_device(stream);
    const cudaStream_t queue = (cudaStream_t)ifs_stream_native(stream);
    IFS__GUARD(device, "making class maps");
    int64_t offset = 0;
    for (int32_t start = 0; start < n; start += MAX_IMAGES) {
        const int32_t count = n - start < MAX_IMAGES ? n - start : MAX_IMAGES;
        for (int32_t i = 0; i < count; i++) {
            const ifs_geometry &g = geometries[start + i];
            IFS__TRY(ifs__class_map_sides(params, &g, run.images[i].sides));
            run.images[i].width = g.source_width;
            run.images[i].height = g.source_height;
            run.images[i].offset = offset;
            offset += ((int64_t)g.source_width * g.source_height + 255) & ~(int64_t)255;
        }
        run.scores = (const uint8_t *)scores + (size_t)start * points * (size_t)params->num_classes * element;
        run.best = workspace + (size_t)start * points;
        IFS__CUDA(params->dtype == IFS_FLOAT16 ? launch<__half>(run, count, queue) : launch<float>(run, count, queue),
                  device, "launching class maps");
    }
    return IFS_OK;
}
