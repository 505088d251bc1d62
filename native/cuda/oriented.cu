/*
 * oriented.cu - oriented boxes: from the candidates that a decoder has written to the ones that Fast NMS keeps.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Three kernels. Gather reads each candidate's numbers from the output. Suppress compares each with the better ones of
 * its class; whether these are suppressed themselves does not matter, so all comparisons are independent. Emit writes
 * the kept ones in order.
 */
#include "../src/detect.h"
#include "../src/oriented_math.h"
#include "common.cuh"
#include "kernels.cuh"

namespace {

constexpr int THREADS = 256;

struct Candidate {
    ifs__oriented box;
    int32_t class_id;
    int32_t kept;
};

static_assert(sizeof(Candidate) == 8 * sizeof(float), "as ifs_cuda_oriented_workspace_nbytes counts");
static_assert(sizeof(ifs_oriented_detection) % 8 == 0, "the head of each image is aligned");

/* The parameter of a launch. */
struct Run {
    const void *output;
    const uint8_t *candidates; /* the decoder's block */
    Candidate *workspace;      /* [n, max_candidates] */
    uint8_t *out;
    size_t output_size, candidates_size, out_size; /* of one image: elements, bytes, bytes */
    size_t anchor_step, step;                      /* number k of anchor a is element a anchor_step + k step */
    int32_t half, max_candidates, max_detections, angle;
    ifs__oriented_limit limit;
};

__device__ inline const ifs_cuda_detections *head_of(const Run &run, int image) {
    return (const ifs_cuda_detections *)(run.candidates + image * run.candidates_size);
}

__device__ inline float number_of(const Run &run, int image, int32_t anchor, int32_t k) {
    const size_t at = image * run.output_size + (size_t)anchor * run.anchor_step + (size_t)k * run.step;
    return run.half ? load((const __half *)run.output + at) : load((const float *)run.output + at);
}

__global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ Run run) {
    const int image = (int)blockIdx.y;
    const ifs_cuda_detections *head = head_of(run, image);
    const ifs_detection *found = (const ifs_detection *)(head + 1);
    Candidate *mine = run.workspace + (size_t)image * run.max_candidates;
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < head->count; i += (int)(gridDim.x * THREADS)) {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = number_of(run, image, found[i].row, k);
        const float angle = number_of(run, image, found[i].row, run.angle);
        mine[i].box = ifs__oriented_of(v[0], v[1], v[2], v[3], angle);
        mine[i].class_id = found[i].class_id;
        mine[i].kept = ifs__finite(angle);
        if (!mine[i].kept)
            mine[i].box.a = ifs__float_of_bits(0x7fc00000u); /* NaN: it overlaps nothing */
    }
}

__global__ void __launch_bounds__(THREADS) suppress_kernel(const __grid_constant__ Run run, bool by_class) {
    __shared__ ifs__oriented boxes[THREADS];
    __shared__ int32_t classes[THREADS];
    const int image = (int)blockIdx.y, count = head_of(run, image)->count;
    Candidate *mine = run.workspace + (size_t)image * run.max_candidates;
    for (int start = (int)blockIdx.x * THREADS; start < count; start += (int)gridDim.x * THREADS) {
        const int me = start + (int)threadIdx.x;
        Candidate own = {};
        if (me < count)
            own = mine[me];
        bool alive = me < count && own.kept;
        for (int tile = 0; tile <= start; tile += THREADS) {
            __syncthreads();
            const int other = tile + (int)threadIdx.x;
            if (other < count) {
                boxes[threadIdx.x] = mine[other].box;
                classes[threadIdx.x] = mine[other].class_id;
            }
            __syncthreads();
            const int end = min(THREADS, me - tile);
            for (int i = 0; i < end && alive; i++)
                alive =
                    !((!by_class || classes[i] == own.class_id) && ifs__oriented_overlap(boxes[i], own.box, run.limit));
        }
        if (me < count)
            mine[me].kept = alive;
    }
}

__global__ void __launch_bounds__(THREADS) emit_kernel(const __grid_constant__ Run run) {
    __shared__ int32_t of_warps[THREADS / 32];
    const int image = (int)blockIdx.x;
    const ifs_cuda_detections *head = head_of(run, image);
    const ifs_detection *found = (const ifs_detection *)(head + 1);
    const Candidate *mine = run.workspace + (size_t)image * run.max_candidates;
    ifs_cuda_detections *out = (ifs_cuda_detections *)(run.out + image * run.out_size);
    ifs_oriented_detection *boxes = (ifs_oriented_detection *)(out + 1);
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    int kept = 0;
    for (int start = 0; start < head->count; start += THREADS) {
        const int i = start + (int)threadIdx.x;
        const bool is_kept = i < head->count && mine[i].kept;
        const uint32_t mask = __ballot_sync(ALL, is_kept);
        __syncthreads();
        if (lane == 0)
            of_warps[warp] = __popc(mask);
        __syncthreads();
        int number = kept + __popc(mask & lanes_below());
        for (int w = 0; w < THREADS / 32; w++) {
            number += w < warp ? of_warps[w] : 0;
            kept += of_warps[w];
        }
        if (is_kept && number < run.max_detections) {
            const ifs_detection &d = found[i];
            const auto at = [&](int32_t k) { return number_of(run, image, d.row, k); };
            boxes[number] = {at(0), at(1), at(2), at(3), at(run.angle), d.score, d.class_id, d.row};
        }
    }
    if (threadIdx.x == 0) {
        out->stats = head->stats;
        /* What did not fit the decoder's block was never compared. */
        out->stats.dropped_candidates += head->stats.dropped_detections;
        out->stats.kept = kept;
        out->count = min(kept, run.max_detections);
        out->stats.dropped_detections = kept - out->count;
        out->reserved = 0;
    }
}

} // namespace

ifs_status ifs_cuda_oriented(const ifs_detect_params *detect, const void *output, int32_t n, const void *candidates,
                             float iou_threshold, int32_t max_detections, void *workspace, size_t workspace_nbytes,
                             void *detections, size_t nbytes, ifs_stream *stream) {
    if (!detect || (n && (!output || !candidates || !workspace || !detections)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a batch of %d images, but a pointer is NULL", (int)n);
    IFS__TRY(ifs__check_detect_params(detect));
    IFS__TRY(ifs__check_stream(stream));
    if (detect->num_extra < 1)
        return ifs__fail(IFS_ERR_SHAPE, "the head has no extra numbers; the last one is the angle of an oriented box");
    if (!(iou_threshold >= 0 && iou_threshold <= 1))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "iou_threshold is %g; it must be 0 to 1", (double)iou_threshold);
    if (n < 0 || n > 65535 || max_detections < 1)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "a batch of %d images of %d boxes; use 0 to 65535 images, and 1 box or more", (int)n,
                         (int)max_detections);
    const size_t needed = ifs_cuda_oriented_nbytes(max_detections, 1) * (size_t)n;
    const size_t scratch = ifs_cuda_oriented_workspace_nbytes(detect->max_detections, n);
    if (nbytes < needed || workspace_nbytes < scratch)
        return ifs__fail(IFS_ERR_TOO_SMALL,
                         "%d images need a block of %zu bytes and a workspace of %zu, but these have %zu and %zu",
                         (int)n, needed, scratch, nbytes, workspace_nbytes);
    const size_t element = detect->dtype == IFS_FLOAT16 ? 2 : 4;
    if ((uintptr_t)output % element || (uintptr_t)candidates % 8 || (uintptr_t)workspace % 8 ||
        (uintptr_t)detections % 8)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "an address is not aligned to the elements that it points to");
    if (!n)
        return IFS_OK;
    const bool columns = detect->head == IFS_DETECT_HEAD_YOLOV8;
    const size_t anchors = (size_t)detect->num_anchors;
    const size_t numbers = (columns ? 4 : 5) + (size_t)detect->num_classes + (size_t)detect->num_extra;
    Run run = {};
    run.output = output;
    run.candidates = (const uint8_t *)candidates;
    run.workspace = (Candidate *)workspace;
    run.out = (uint8_t *)detections;
    run.output_size = anchors * numbers;
    run.candidates_size = ifs_cuda_detections_nbytes(detect->max_detections, 1);
    run.out_size = ifs_cuda_oriented_nbytes(max_detections, 1);
    run.anchor_step = columns ? 1 : numbers;
    run.step = columns ? anchors : 1;
    run.half = detect->dtype == IFS_FLOAT16;
    run.max_candidates = detect->max_detections;
    run.max_detections = max_detections;
    run.angle = (int32_t)numbers - 1;
    run.limit = ifs__oriented_limit_of(iou_threshold);
    const int device = ifs_stream_device(stream);
    const cudaStream_t queue = (cudaStream_t)ifs_stream_native(stream);
    IFS__GUARD(device, "oriented boxes");
    const int tiles = (run.max_candidates + THREADS - 1) / THREADS;
    const dim3 grid((unsigned)(tiles < 64 ? tiles : 64), (unsigned)n);
    gather_kernel<<<grid, THREADS, 0, queue>>>(run);
    IFS__CUDA(cudaGetLastError(), device, "launching the gathering of oriented boxes");
    suppress_kernel<<<grid, THREADS, 0, queue>>>(run, !detect->class_agnostic && detect->num_classes > 1);
    IFS__CUDA(cudaGetLastError(), device, "launching NMS of oriented boxes");
    emit_kernel<<<(unsigned)n, THREADS, 0, queue>>>(run);
    IFS__CUDA(cudaGetLastError(), device, "launching the output of oriented boxes");
    return IFS_OK;
}
