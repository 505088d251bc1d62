/*
 * detect.cu - from a batch of outputs to the boxes of its images, without a decision by the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Candidates are 64-bit keys, (order of the score << 32 | anchor * num_classes + class), as on the host. All keys of an
 * image differ, so their order does not depend on the order in which threads find them. The launches of a run:
 *
 *     scan      finds the candidates of each image: appends their keys, counts them
 *     select    an image with more candidates than fit: finds them again and keeps the best max_candidates
 *     finish    up to 512 candidates: one block sorts them, runs NMS and writes the boxes. More: a block sorts 2048
 *     merge     more: the rank of a candidate is the sum of its ranks in the sorted parts; decodes the boxes in order
 *     suppress  more: NMS, one block for each class of each image
 *     emit      more: writes the boxes. Always: sets the counters back to zero for the next run
 *
 * Select, merge and suppress return at once where no image has that many candidates, which is the usual case.
 */
#include "../src/budget.h"
#include "../src/detect.h"
#include "common.cuh"
#include "detect_scan.cuh"
#include "nms.cuh"

#include <stdlib.h>
#include <string.h>

namespace {

/* ---- writing the results ---- */

__device__ inline void write_head(const Run &run, int image, uint32_t num_candidates, uint32_t kept) {
    ifs_cuda_detections head;
    const uint32_t limit = (uint32_t)run.max_detections;
    head.stats.candidates = num_candidates;
    head.stats.dropped_candidates = num_candidates > run.max_candidates ? num_candidates - run.max_candidates : 0;
    head.stats.kept = kept;
    head.stats.dropped_detections = kept > limit ? kept - limit : 0;
    head.count = (int32_t)(kept > limit ? limit : kept);
    head.reserved = 0;
    *(ifs_cuda_detections *)(run.out + image * run.out_size) = head;
}

__device__ inline void write_detection(const Run &run, int image, uint32_t number, const Candidate &candidate,
                                       uint64_t key) {
    if (number >= (uint32_t)run.max_detections)
        return;
    const Image &p = run.images[image];
    const ifs__box box = ifs__box_to_source(candidate.box, p.to_source, p.source_width, p.source_height);
    const float score = ifs__score_of_key((uint32_t)(key >> 32));
    const int32_t row = (int32_t)((uint32_t)key / (uint32_t)run.num_classes);
    ifs_detection *detections = (ifs_detection *)(run.out + image * run.out_size + sizeof(ifs_cuda_detections));
    detections[number] = {box.x1, box.y1, box.x2, box.y2, score, candidate.class_id, row};
}

template <typename T> __device__ inline Candidate candidate_of(const Run &run, int image, uint64_t key) {
    const uint32_t payload = (uint32_t)key, anchor = payload / (uint32_t)run.num_classes;
    return {decode<T>(run, image, anchor), (int32_t)(payload - anchor * (uint32_t)run.num_classes)};
}

/* ---- finish: an image with few candidates to the end; of one with many, a part is sorted ---- */

template <typename T> __global__ void __launch_bounds__(THREADS) finish_kernel(const __grid_constant__ Run run) {
    __shared__ uint64_t keys[CHUNK];
    __shared__ Tile<THREADS> tile;
    const int image = (int)blockIdx.y;
    const uint32_t num_candidates = run.num_candidates[image], count = stored(run, num_candidates);
    const uint32_t first = blockIdx.x * CHUNK;
    if (first >= count && first > 0)
        return;
    uint64_t *all = run.keys + (size_t)image * run.capacity;
    load_and_sort(keys, all + first, min(count - first, (uint32_t)CHUNK));
    if (count > SMALL) {
        for (uint32_t i = threadIdx.x; i < CHUNK && first + i < count; i += THREADS)
            all[first + i] = keys[i];
        return;
    }
    const uint32_t kept = suppress(
        tile, min(count, run.max_candidates), run.by_class, run.iou, nullptr,
        [&](uint32_t i) { return candidate_of<T>(run, image, keys[i]); },
        [&](uint32_t i, uint32_t number, const Candidate &c) { write_detection(run, image, number, c, keys[i]); });
    if (threadIdx.x == 0)
        write_head(run, image, num_candidates, kept);
}

/* ---- merge: the keys of each part get their ranks ---- */

__device__ inline uint32_t lower_bound(const uint64_t *keys, uint32_t count, uint64_t key) {
    uint32_t low = 0;
    while (count > 0) {
        const uint32_t half = count / 2;
        if (keys[low + half] < key) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return low;
}

template <typename T> __global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ Run run) {
    __shared__ uint64_t part[CHUNK];
    constexpr uint32_t EACH = CHUNK / THREADS;
    const int image = (int)blockIdx.y;
    const uint32_t count = stored(run, run.num_candidates[image]), first = blockIdx.x * CHUNK;
    if (count <= SMALL || first >= count)
        return;
    const uint64_t *all = run.keys + (size_t)image * run.capacity;
    uint64_t mine[EACH];
    uint32_t rank[EACH];
#pragma unroll
    for (uint32_t e = 0; e < EACH; e++) {
        const uint32_t i = threadIdx.x + e * THREADS;
        mine[e] = first + i < count ? all[first + i] : ~(uint64_t)0;
        rank[e] = i;
    }
    for (uint32_t other = 0; other < count; other += CHUNK) {
        if (other == first)
            continue;
        const uint32_t length = min(count - other, (uint32_t)CHUNK);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < length; i += THREADS)
            part[i] = all[other + i];
        __syncthreads();
#pragma unroll
        for (uint32_t e = 0; e < EACH; e++)
            rank[e] += lower_bound(part, length, mine[e]);
    }
    const size_t first_rank = (size_t)image * run.max_candidates;
#pragma unroll
    for (uint32_t e = 0; e < EACH; e++)
        if (first + threadIdx.x + e * THREADS < count && rank[e] < run.max_candidates) {
            const Candidate candidate = candidate_of<T>(run, image, mine[e]);
            run.ranked[first_rank + rank[e]] = mine[e];
            run.boxes[first_rank + rank[e]] = vector_of(candidate.box);
            run.classes[first_rank + rank[e]] = candidate.class_id;
            run.kept[first_rank + rank[e]] = 0;
        }
}

/* ---- suppress: NMS of one class of one image at a time ---- */

/* Writes the ranks of a class, ascending, to a part of `members` reserved for it. Returns their number, and sets
 * `*members` to the part. Each warp counts the members among its share of the ranks, then writes behind the warps
 * before it. */
__device__ uint32_t gather_class(const Run &run, int image, uint32_t count, int32_t class_id, uint32_t **members,
                                 uint32_t *numbers) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = SUPPRESS_THREADS / 32;
    const size_t first_rank = (size_t)image * run.max_candidates;
    const int32_t *classes = run.classes + first_rank;
    const uint32_t length = ((count + warps - 1) / warps + 31) / 32 * 32;
    const uint32_t begin = min(warp * length, count), end = min(begin + length, count);
    uint32_t number = 0;
#pragma unroll 4
    for (uint32_t i = begin + lane; i < end; i += 32)
        number += classes[i] == class_id;
#pragma unroll
    for (int width = 16; width > 0; width /= 2)
        number += __shfl_xor_sync(ALL, number, width);
    __syncthreads(); /* `numbers` of the class before was read */
    if (lane == 0)
        numbers[warp] = number;
    __syncthreads();
    uint32_t before = 0, sum = 0;
    for (uint32_t i = 0; i < warps; i++) {
        before += i < warp ? numbers[i] : 0;
        sum += numbers[i];
    }
    if (!sum)
        return 0;
    if (threadIdx.x == 0)
        numbers[warps] = atomicAdd(run.num_members + image, sum);
    __syncthreads();
    uint32_t *at = run.members + first_rank + numbers[warps];
    *members = at;
    for (uint32_t start = begin; start < end; start += 32) {
        const bool is_member = start + lane < end && classes[start + lane] == class_id;
        const uint32_t mask = __ballot_sync(ALL, is_member);
        if (is_member)
            at[before + (uint32_t)__popc(mask & lanes_below())] = start + lane;
        before += (uint32_t)__popc(mask);
    }
    __syncthreads();
    return sum;
}

__global__ void __launch_bounds__(SUPPRESS_THREADS) suppress_kernel(const __grid_constant__ Run run) {
    __shared__ Tile<SUPPRESS_THREADS> tile;
    __shared__ uint32_t numbers[SUPPRESS_THREADS / 32 + 1];
    const bool many = threadIdx.x < (uint32_t)run.n && stored(run, run.num_candidates[threadIdx.x]) > SMALL;
    if (!__syncthreads_or(many))
        return;
    const uint32_t classes = run.by_class ? (uint32_t)run.num_classes : 1;
    for (uint64_t task = blockIdx.x; task < (uint64_t)classes * (uint32_t)run.n; task += gridDim.x) {
        const int image = (int)(task % (uint32_t)run.n);
        const uint32_t class_id = (uint32_t)(task / (uint32_t)run.n);
        const uint32_t num_stored = stored(run, run.num_candidates[image]);
        if (num_stored <= SMALL)
            continue;
        uint32_t count = min(num_stored, run.max_candidates);
        const size_t first_rank = (size_t)image * run.max_candidates;
        uint32_t *members = nullptr;
        if (run.by_class) {
            count = gather_class(run, image, count, (int32_t)class_id, &members, numbers);
            if (!count)
                continue;
        }
        /* The keys were merged, and their memory is free: a key has the space of two numbers. */
        uint32_t *kept_indices = (uint32_t *)(run.keys + (size_t)image * run.capacity);
        if (members)
            kept_indices += members - (run.members + first_rank);
        suppress(
            tile, count, false, run.iou, kept_indices,
            [&](uint32_t i) {
                return Candidate{box_of(run.boxes[first_rank + (members ? members[i] : i)]), (int32_t)class_id};
            },
            [&](uint32_t i, uint32_t, const Candidate &) { run.kept[first_rank + (members ? members[i] : i)] = 1; });
    }
}

/* ---- emit ---- */

__global__ void __launch_bounds__(THREADS) emit_kernel(const __grid_constant__ Run run) {
    __shared__ uint32_t numbers[2][THREADS / 32];
    const int image = (int)blockIdx.x;
    const uint32_t num_candidates = run.num_candidates[image], num_stored = stored(run, num_candidates);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    __syncthreads();
    if (threadIdx.x == 0) /* for the next run */
        run.num_candidates[image] = run.num_members[image] = 0;
    if (num_stored <= SMALL)
        return;
    const uint32_t count = min(num_stored, run.max_candidates);
    const size_t first_rank = (size_t)image * run.max_candidates;
    uint32_t kept = 0, side = 0;
    for (uint32_t base = 0; base < count; base += THREADS, side ^= 1) {
        const uint32_t i = base + threadIdx.x;
        const bool is_kept = i < count && run.kept[first_rank + i];
        const uint32_t mask = __ballot_sync(ALL, is_kept);
        if (lane == 0)
            numbers[side][warp] = (uint32_t)__popc(mask);
        __syncthreads(); /* one suffices: the other side is written only after all have passed the next one */
        uint32_t before = kept;
        for (uint32_t w = 0; w < THREADS / 32; w++) {
            before += w < warp ? numbers[side][w] : 0;
            kept += numbers[side][w];
        }
        if (is_kept) {
            const Candidate candidate = {box_of(run.boxes[first_rank + i]), run.classes[first_rank + i]};
            write_detection(run, image, before + (uint32_t)__popc(mask & lanes_below()), candidate,
                            run.ranked[first_rank + i]);
        }
    }
    if (threadIdx.x == 0)
        write_head(run, image, num_candidates, kept);
}

} // namespace

/* ---- the decoder ---- */

struct ifs_cuda_detection_decoder {
    ifs_detect_params params;
    int32_t max_batch, device;
    int32_t blocks; /* of suppress, at most */
    bool dirty;     /* a run failed midway, so the counters may not be zero */
    uint32_t total; /* the most candidates that an image can have */
    size_t nbytes;
    void *workspace;
    ifs_budget *budget; /* what the workspace counts against, or NULL */
    Run run; /* the part that is the same in each run */
};

/* Lays out the workspace and returns its size. With a base of NULL, it only computes the size. */
static size_t lay_out(Run &run, size_t images, bool with_mask, uint8_t *base) {
    size_t used = 0;
    const size_t keys = images * run.capacity, ranks = images * run.max_candidates;
#define TAKE(member, count)                                                                                            \
    do {                                                                                                               \
        run.member = decltype(run.member)(base + used);                                                                \
        used += ((count) * sizeof *run.member + 255) & ~(size_t)255;                                                   \
    } while (0)
    TAKE(num_candidates, images);
    TAKE(num_members, images);
    TAKE(keys, keys);
    TAKE(ranked, ranks);
    TAKE(boxes, ranks);
    TAKE(classes, ranks);
    TAKE(kept, ranks);
    TAKE(members, ranks);
    if (with_mask)
        TAKE(class_bits, ((size_t)run.num_classes + 31) / 32);
#undef TAKE
    return used;
}

/* Sets the counters, which lie before the keys, to zero. */
static cudaError_t clear_counters(const Run &run, cudaStream_t queue) {
    return cudaMemsetAsync(run.num_candidates, 0, (uint8_t *)run.keys - (uint8_t *)run.num_candidates, queue);
}

/* Copies the mask to the device, a bit for each class; waits for the copy. */
static ifs_status upload_mask(const Run &run, const uint8_t *mask, int32_t device) {
    const size_t words = ((size_t)run.num_classes + 31) / 32;
    uint32_t *bits = (uint32_t *)calloc(words, sizeof *bits);
    if (!bits)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", words * sizeof *bits);
    for (int32_t c = 0; c < run.num_classes; c++)
        bits[c / 32] |= (uint32_t)(mask[c] == 1) << (c % 32);
    cudaError_t error =
        cudaMemcpyAsync(run.class_bits, bits, words * sizeof *bits, cudaMemcpyHostToDevice, cudaStreamPerThread);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamPerThread);
    free(bits);
    return error == cudaSuccess ? IFS_OK : ifs__cuda_failed(error, device, "copying the class mask of a decoder");
}

/* Allocates the workspace, and fills it for the first run. Where it fails, the decoder can be destroyed. */
static ifs_status prepare(ifs_cuda_detection_decoder *d, const uint8_t *mask) {
    const size_t images = (size_t)(d->max_batch < MAX_IMAGES ? d->max_batch : MAX_IMAGES);
    const size_t nbytes = lay_out(d->run, images, mask, nullptr);
    d->budget = ifs__budget_in_use();
    IFS__TRY(ifs__budget_charge(d->budget, nbytes));
    d->nbytes = nbytes; /* from here on, the decoder's end credits them */
    IFS__TRY(ifs__device_alloc(d->device, nbytes, &d->workspace));
    lay_out(d->run, images, mask, (uint8_t *)d->workspace);
    int processors = 0;
    IFS__CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, d->device), d->device,
              "reading the number of multiprocessors");
    d->blocks = 8 * processors;
    const char *what = "clearing the counters of a decoder";
    ifs__device_guard guard(d->device);
    /* Not on the legacy stream: another thread's capture on a blocking stream would have to wait for it, and fail. */
    IFS__CUDA(clear_counters(d->run, cudaStreamPerThread), d->device, what);
    IFS__CUDA(cudaStreamSynchronize(cudaStreamPerThread), d->device, what); /* runs are queued on other streams */
    return mask ? upload_mask(d->run, mask, d->device) : IFS_OK;
}

ifs_status ifs_cuda_detection_decoder_create(const ifs_detect_params *params, int32_t max_batch, int32_t device,
                                             ifs_cuda_detection_decoder **out) {
    if (!params || !out)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "params or out is NULL");
    IFS__TRY(ifs__check_detect_params(params));
    if (max_batch < 1 || max_batch > 65535)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "max_batch is %d; it must be 1 to 65535", (int)max_batch);
    if (!ifs_cuda_detections_nbytes(params->max_detections, max_batch))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "max_detections is %d, which is too many for a batch of %d",
                         (int)params->max_detections, (int)max_batch);
    IFS__TRY(ifs__device_check(device));
    ifs_cuda_detection_decoder *d = (ifs_cuda_detection_decoder *)calloc(1, sizeof *d);
    if (!d)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *d);
    d->params = *params;
    d->params.class_mask = nullptr; /* the caller's */
    d->max_batch = max_batch;
    d->device = device;
    const bool columns = params->head == IFS_DETECT_HEAD_YOLOV8;
    const uint32_t anchors = (uint32_t)params->num_anchors, classes = (uint32_t)params->num_classes;
    d->total = params->multi_label ? anchors * classes : anchors;
    Run &run = d->run;
    run.head = params->head;
    run.half = params->dtype == IFS_FLOAT16;
    run.num_anchors = params->num_anchors;
    run.num_classes = params->num_classes;
    const uint32_t numbers = (columns ? 4 : 5) + classes + (uint32_t)params->num_extra; /* of an anchor */
    run.row_length = columns ? params->num_anchors : (int32_t)numbers;
    run.output_size = (size_t)anchors * numbers;
    run.multi_label = params->multi_label;
    run.by_class = !params->class_agnostic && params->num_classes > 1;
    run.conf = params->conf_threshold;
    run.iou = params->iou_threshold;
    run.num_strides = params->num_strides;
    memcpy(run.strides, params->strides, sizeof run.strides);
    run.max_detections = params->max_detections;
    run.out_size = ifs_cuda_detections_nbytes(params->max_detections, 1);
    const uint32_t limit = (uint32_t)params->max_candidates;
    run.max_candidates = limit && limit < d->total ? limit : d->total;
    run.capacity = run.max_candidates == d->total          ? d->total
                   : run.max_candidates > MIN_CAPACITY / 2 ? (d->total / 2 < run.max_candidates ? d->total : 2 * limit)
                                                           : (d->total < MIN_CAPACITY ? d->total : MIN_CAPACITY);

    const ifs_status status = prepare(d, params->class_mask);
    if (status != IFS_OK) {
        ifs_cuda_detection_decoder_destroy(d);
        return status;
    }
    *out = d;
    return IFS_OK;
}

void ifs_cuda_detection_decoder_destroy(ifs_cuda_detection_decoder *decoder) {
    if (!decoder)
        return;
    if (decoder->workspace)
        ifs__device_free(decoder->device, decoder->workspace);
    ifs__budget_credit(decoder->budget, decoder->nbytes);
    ifs_budget_destroy(decoder->budget);
    free(decoder);
}

size_t ifs_cuda_detection_decoder_nbytes(const ifs_cuda_detection_decoder *decoder) { return decoder->nbytes; }

template <typename T>
static cudaError_t launch(const ifs_cuda_detection_decoder *d, const Run &run, cudaStream_t stream) {
#define LAUNCHED                                                                                                       \
    do {                                                                                                               \
        cudaError_t error = cudaGetLastError();                                                                        \
        if (error != cudaSuccess)                                                                                      \
            return error;                                                                                              \
    } while (0)
    const unsigned n = (unsigned)run.n;
    const dim3 tiles(((unsigned)run.num_anchors + SCAN_THREADS - 1) / SCAN_THREADS, n);
    if (run.head == IFS_DETECT_HEAD_YOLOV8)
        scan_kernel<T, true><<<tiles, SCAN_THREADS, 0, stream>>>(run);
    else
        scan_kernel<T, false><<<tiles, SCAN_THREADS, 0, stream>>>(run);
    LAUNCHED;
    if (run.capacity < d->total) {
        select_kernel<T><<<n, SELECT_THREADS, 0, stream>>>(run);
        LAUNCHED;
    }
    const dim3 chunks((run.capacity + CHUNK - 1) / CHUNK, n);
    finish_kernel<T><<<chunks, THREADS, 0, stream>>>(run);
    LAUNCHED;
    if (run.capacity > SMALL) {
        merge_kernel<T><<<chunks, THREADS, 0, stream>>>(run);
        LAUNCHED;
        const uint64_t tasks = (uint64_t)n * (run.by_class ? (uint32_t)run.num_classes : 1);
        suppress_kernel<<<(unsigned)(tasks < (uint64_t)d->blocks ? tasks : d->blocks), SUPPRESS_THREADS, 0, stream>>>(
            run);
        LAUNCHED;
    }
    emit_kernel<<<n, THREADS, 0, stream>>>(run);
    LAUNCHED;
#undef LAUNCHED
    return cudaSuccess;
}

ifs_status ifs_cuda_detection_decoder_run(ifs_cuda_detection_decoder *decoder, const void *output,
                                          const ifs_geometry *geometries, int32_t n, void *detections, size_t nbytes,
                                          ifs_stream *stream) {
    ifs_cuda_detection_decoder *d = decoder;
    if (!d || !output || !geometries || !detections)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "decoder, output, geometries or detections is NULL");
    IFS__TRY(ifs__check_stream(stream));
    if (ifs_stream_device(stream) != d->device)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the decoder was made for cuda:%d, but the stream is one of cuda:%d; use a stream of the "
                         "decoder's device",
                         (int)d->device, (int)ifs_stream_device(stream));
    if (n < 0 || n > d->max_batch)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a run of %d images; the decoder was made for 0 to %d", (int)n,
                         (int)d->max_batch);
    const size_t element = d->run.half ? 2 : 4;
    if ((uintptr_t)output % element)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the output %p is not aligned to its elements of %zu bytes", output,
                         element);
    if ((uintptr_t)detections % 8)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the block %p for the detections is not aligned to 8 bytes",
                         detections);
    const size_t needed = n ? ifs_cuda_detections_nbytes(d->params.max_detections, n) : 0;
    if (needed > nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d images of %d detections need %zu bytes, but the block has %zu", (int)n,
                         (int)d->params.max_detections, needed, nbytes);
    for (int32_t i = 0; i < n; i++)
        IFS__TRY(ifs__check_detect_geometry(&d->params, &geometries[i]));

    const cudaStream_t queue = (cudaStream_t)ifs_stream_native(stream);
    IFS__GUARD(d->device, "detecting");
    Run run = d->run;
    for (int32_t start = 0; start < n; start += MAX_IMAGES) {
        run.n = n - start < MAX_IMAGES ? n - start : MAX_IMAGES;
        run.output = (const uint8_t *)output + (size_t)start * run.output_size * element;
        run.out = (uint8_t *)detections + (size_t)start * run.out_size;
        for (int32_t i = 0; i < run.n; i++) {
            const ifs_geometry &g = geometries[start + i];
            Image &p = run.images[i];
            memcpy(p.to_source, g.to_source, sizeof p.to_source);
            p.source_width = g.source_width;
            p.source_height = g.source_height;
            p.canvas_width = g.canvas_width;
            p.canvas_height = g.canvas_height;
        }
        cudaError_t error = cudaSuccess;
        if (d->dirty)
            error = clear_counters(run, queue);
        d->dirty = true;
        if (error == cudaSuccess)
            error = run.half ? launch<__half>(d, run, queue) : launch<float>(d, run, queue);
        if (error != cudaSuccess)
            return ifs__cuda_failed(error, d->device, "launching the detection");
        d->dirty = false;
    }
    return IFS_OK;
}
