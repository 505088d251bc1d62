/*
 * infersdk.h - the native core of infersdk.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Read it from top to bottom; it goes from simple to advanced:
 *
 *   1. Status and errors      every fallible function returns an ifs_status
 *   2. The library            version, build, which SIMD variant runs
 *   3. Element types          ifs_dtype, the same codes in memory and on disk
 *   4. Memory                 a host block and a device block that are one thing (Caffe's SyncedMemory)
 *   5. Tensor                 a shape and a type over a memory; views, conversion, files
 *   6. Images               what an image is, and where its pixels go (geometry)
 *   7. Preprocessing          one pass from an image to a network's input
 *   8. Detection              from a network's output to boxes: decode, NMS, back to the image
 *   9. Classification         softmax and top-k
 *  10. Devices                what there is, streams, events, and memory that is used on them
 *  11. Batches                many images on many threads, and on their way to a device
 *  12. On the device          the operations of 7 to 9 as kernels
 *  13. Calibration            ranges and histograms of activations, and the threshold for INT8 out of them
 *
 * Rules that hold everywhere
 *
 *   - Results go through `out` pointers, which are untouched on failure unless said otherwise.
 *   - Nothing prints, exits or aborts.
 *   - Destroy functions take NULL.
 *   - Who creates destroys. A wrapped pointer is borrowed: the caller keeps it alive.
 *   - A handle is used by one thread at a time; different handles are free, also where they share a memory.
 *   - Sizes are bytes (`nbytes`) or elements (`count`), never both under one name. Coordinates are pixels with the
 *     origin at the top left *edge*: the centre of the first pixel is (0.5, 0.5).
 */
#ifndef INFERSDK_H
#define INFERSDK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Status and errors ------------------------------------------------------------------------------------- */

/*
 * Each status code once, with its text (the shape is libuv's). Codes are stable: a released number keeps its meaning.
 * The binding generator reads these lines too, so that no code is typed twice.
 */
#define IFS_STATUS_MAP(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(ERR_INVALID_ARGUMENT, -1, "invalid argument")                                                                    \
    X(ERR_OUT_OF_MEMORY, -2, "out of host memory")                                                                     \
    X(ERR_NO_DEVICE, -3, "no such device")                                                                             \
    X(ERR_DEVICE, -4, "device failure")                                                                                \
    X(ERR_DEVICE_OUT_OF_MEMORY, -5, "out of device memory")                                                            \
    X(ERR_TOO_SMALL, -6, "referenced memory is too small")                                                             \
    X(ERR_SHAPE, -7, "shape does not fit")                                                                             \
    X(ERR_DTYPE, -8, "element type does not fit")                                                                      \
    X(ERR_READ_ONLY, -9, "memory is read-only")                                                                        \
    X(ERR_IO, -10, "input or output failed")                                                                           \
    X(ERR_FORMAT, -11, "malformed data")                                                                               \
    X(ERR_UNSUPPORTED, -12, "not supported")

typedef int32_t ifs_status;

#define IFS__STATUS_ENUM(name, code, text) IFS_##name = (code),
enum { IFS_STATUS_MAP(IFS__STATUS_ENUM) IFS__STATUS_END = -999 };
#undef IFS__STATUS_ENUM

/* [cdef] The binding generator takes what stands between the marks as it is: plain C declarations only. */

/* The fixed text of a status code; "unknown status" for a number that is none. Never NULL. */
const char *ifs_status_text(ifs_status status);

/* What went wrong in the last failed call *of this thread*, with the values and the remedy. Never NULL; "" if none. */
const char *ifs_last_error(void);

/* ---- 2. The library ------------------------------------------------------------------------------------------- */

/* The version of the library, "major.minor.patch". */
const char *ifs_version(void);

/* 1 when the library was built with its CUDA half, 0 when it is CPU-only. Says nothing of a GPU being there. */
int32_t ifs_has_cuda(void);

/*
 * The SIMD variants. NONE is the plain C reference, which every other variant equals bit for bit. The best one that was
 * built and that this processor has is chosen at the first use; the environment variable INFERSDK_SIMD (none, neon,
 * avx2, avx512) lowers it.
 */
#define IFS_SIMD_NONE 0
#define IFS_SIMD_NEON 1
#define IFS_SIMD_AVX2 2
#define IFS_SIMD_AVX512 3

int32_t ifs_simd(void);                           /* the variant in use */
int32_t ifs_simd_best(void);                      /* the best one this build and processor have */
ifs_status ifs_set_simd(int32_t simd);            /* for the whole process; for tests. ERR_UNSUPPORTED if not there */
const char *ifs_simd_name(int32_t simd);          /* "none", "avx2", ...; NULL for a number that is none */

/* ---- 3. Element types ----------------------------------------------------------------------------------------- */

/* The codes 0 to 3 are those of the tensor files that C++ users of the same layout read; ours go on from there. */
#define IFS_FLOAT32 0
#define IFS_FLOAT16 1
#define IFS_INT32 2
#define IFS_UINT8 3
#define IFS_INT8 4
#define IFS_INT64 5
#define IFS_BOOL 6
#define IFS_FLOAT64 7
#define IFS_INT16 8
#define IFS_UINT16 9
#define IFS_UINT32 10
#define IFS_UINT64 11
#define IFS_NUM_DTYPES 12

size_t ifs_dtype_size(int32_t dtype);             /* bytes an element; 0 for a number that is no type */
const char *ifs_dtype_name(int32_t dtype);        /* "float32", ...; NULL for a number that is no type */

/* ---- 4. Memory ------------------------------------------------------------------------------------------------ */

/*
 * A pair of blocks, one on the host and one on a device, that stand for the same bytes. Both are lazy: a block is
 * allocated when it is first asked for, and again only when more is asked for than it holds. The head says which side
 * is newer; an access copies only when the other side is.
 *
 *     UNINITIALIZED --write host--> HOST --read device--> SYNCED <--read host-- DEVICE
 *                                    ^---- write host ------+------ write device ---^
 *
 * A memory is counted: each tensor on it holds one reference, and so does who created it.
 */
typedef struct ifs_memory ifs_memory;

#define IFS_HEAD_UNINITIALIZED 0
#define IFS_HEAD_HOST 1
#define IFS_HEAD_DEVICE 2
#define IFS_HEAD_SYNCED 3

#define IFS_NO_DEVICE (-1) /* the device number of a memory that lives on the host alone */

/* What an access is for. WRITE promises to overwrite all of it, and so never copies. */
#define IFS_READ 1
#define IFS_WRITE 2
#define IFS_READ_WRITE 3

/* A new memory, empty, for `device` (a CUDA ordinal, or IFS_NO_DEVICE). The host block is aligned to 64 bytes, and
 * page-locked where the memory has a device. */
ifs_status ifs_memory_create(int32_t device, ifs_memory **out);

/* Borrows `nbytes` bytes of the caller's at `host`, and never grows or frees them. A read-only one refuses to be
 * written (ERR_READ_ONLY). The head is HOST. */
ifs_status ifs_memory_wrap_host(void *host, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out);

/* The same for device memory on `device`. The head is DEVICE. */
ifs_status ifs_memory_wrap_device(void *dev, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out);

/* Gives back the caller's reference; the last one frees both blocks. */
void ifs_memory_destroy(ifs_memory *memory);

/* Says that the memory now stands for `nbytes` bytes. Content is kept when it fits the capacity, except for what lies
 * behind a later write; growing beyond it gives new blocks with undefined content (head UNINITIALIZED), or
 * ERR_TOO_SMALL for a borrowed block. */
ifs_status ifs_memory_resize(ifs_memory *memory, size_t nbytes);

/* The host side, brought up to date as `access` needs. */
ifs_status ifs_memory_host(ifs_memory *memory, int32_t access, void **out);

/* The device side. ERR_NO_DEVICE for a memory without a device, a build without CUDA, or a machine without a GPU. */
ifs_status ifs_memory_device(ifs_memory *memory, int32_t access, void **out);

int32_t ifs_memory_head(const ifs_memory *memory);
int32_t ifs_memory_device_id(const ifs_memory *memory);
size_t ifs_memory_nbytes(const ifs_memory *memory);
size_t ifs_memory_host_capacity(const ifs_memory *memory);
size_t ifs_memory_device_capacity(const ifs_memory *memory);

/*
 * A hold on one of the two blocks: it stays where it is and stays valid until it is released, even if the memory grows
 * out of it or is destroyed meanwhile. It is how a view that was handed out (a NumPy array, say) outlives its tensor. A
 * hold on a borrowed block does not make the lender keep it. ERR_INVALID_ARGUMENT if that side has no block yet.
 */
typedef struct ifs_block ifs_block;

#define IFS_SIDE_HOST 0
#define IFS_SIDE_DEVICE 1

ifs_status ifs_memory_hold(ifs_memory *memory, int32_t side, ifs_block **out);
void ifs_block_release(ifs_block *block);

/* What all memories of the process hold now, and the most they ever held, in bytes. Borrowed blocks do not count. */
typedef struct ifs_memory_stats {
    uint64_t host_bytes, host_peak, pinned_bytes, pinned_peak, device_bytes, device_peak;
    uint64_t memories; /* alive */
} ifs_memory_stats;

void ifs_get_memory_stats(ifs_memory_stats *out);

/* ---- 5. Tensor ------------------------------------------------------------------------------------------------ */

/* A shape and an element type over a memory: always dense, in C order. No dimensions is a scalar; a dimension may be 0.
 */
typedef struct ifs_tensor ifs_tensor;

#define IFS_MAX_NDIM 16

/* A new tensor on a new memory. Nothing is allocated before the first access. */
ifs_status ifs_tensor_create(int32_t dtype, int32_t ndim, const int64_t *dims, int32_t device, ifs_tensor **out);

/* A tensor over an existing memory, from `offset` bytes on; takes a reference of its own. ERR_TOO_SMALL if it does not
 * fit, ERR_INVALID_ARGUMENT if the offset is not a multiple of the element size. */
ifs_status ifs_tensor_on(ifs_memory *memory, size_t offset, int32_t dtype, int32_t ndim, const int64_t *dims,
                         ifs_tensor **out);

/* A view of [start, stop) of the first axis. It shares the memory, and with it the head. */
ifs_status ifs_tensor_slice(const ifs_tensor *tensor, int64_t start, int64_t stop, ifs_tensor **out);

void ifs_tensor_destroy(ifs_tensor *tensor);

/* A new shape. Fits the capacity: content and addresses stay. Beyond it: new blocks, undefined content. A view can
 * shrink but not outgrow what it was made over (ERR_TOO_SMALL). */
ifs_status ifs_tensor_resize(ifs_tensor *tensor, int32_t ndim, const int64_t *dims);

int32_t ifs_tensor_dtype(const ifs_tensor *tensor);
int32_t ifs_tensor_ndim(const ifs_tensor *tensor);
const int64_t *ifs_tensor_dims(const ifs_tensor *tensor); /* valid until the next resize */
size_t ifs_tensor_count(const ifs_tensor *tensor);
size_t ifs_tensor_nbytes(const ifs_tensor *tensor);
int32_t ifs_tensor_head(const ifs_tensor *tensor);
int32_t ifs_tensor_device(const ifs_tensor *tensor);
ifs_memory *ifs_tensor_memory(const ifs_tensor *tensor); /* borrowed */

/* The first element on either side, brought up to date as `access` needs. A view that does not cover its whole memory
 * keeps the rest of it true: its WRITE copies when the other side is newer. */
ifs_status ifs_tensor_host(ifs_tensor *tensor, int32_t access, void **out);
ifs_status ifs_tensor_device_ptr(ifs_tensor *tensor, int32_t access, void **out);

/* The same on `side`, with a hold on its block, in one step: what to hand out where another thread may resize the
 * tensor that a view was made of. */
ifs_status ifs_tensor_hold(ifs_tensor *tensor, int32_t side, int32_t access, void **out, ifs_block **block);

/* The element number of index[0..n), the missing last indices being 0. ERR_INVALID_ARGUMENT names what is out of range.
 */
ifs_status ifs_tensor_offset(const ifs_tensor *tensor, int32_t n, const int64_t *index, int64_t *out);

/* Copies the content of `src` into `dst` (same number of elements, ERR_SHAPE otherwise), converting the element type as
 * ifs_convert does. On the host unless types are equal and both sides live on devices. */
ifs_status ifs_tensor_copy(ifs_tensor *dst, ifs_tensor *src);

/*
 * `count` elements from one type to another. Between integers the value is saturated; from floating point it is
 * truncated towards zero and saturated, NaN gives 0; float16 is rounded to the nearest, ties to even; to bool, 0 is
 * false and all else (NaN too) is true.
 */
ifs_status ifs_convert(const void *src, int32_t src_dtype, void *dst, int32_t dst_dtype, size_t count);

/*
 * Files. Little-endian: u32 magic 0xFCCFE2E2 | u32 ndims | u32 dtype | i32 dims[ndims] | raw C-order data.
 * The writer replaces `path` in one step (a sibling file, renamed). The reader trusts nothing: a file that is
 * truncated, longer than it says, of an unknown type, or whose sizes overflow is ERR_FORMAT.
 */
ifs_status ifs_tensor_save(ifs_tensor *tensor, const char *path);
ifs_status ifs_tensor_load(const char *path, int32_t device, ifs_tensor **out);

/* The same layout in memory; the parsing half of ifs_tensor_load. */
ifs_status ifs_tensor_parse(const void *data, size_t nbytes, int32_t device, ifs_tensor **out);

/* ---- 6. Images ---------------------------------------------------------------------------------------------- */

/* How the bytes of a pixel are ordered. NV12 is a plane of Y and one of interleaved U, V at half the size (BT.601,
 * limited range, as OpenCV converts it to BGR); its width and height are even. It is treated as the BGR image that it
 * stands for: gray out of it is gray out of that, not the Y plane. */
#define IFS_PIXEL_BGR 0
#define IFS_PIXEL_RGB 1
#define IFS_PIXEL_BGRA 2
#define IFS_PIXEL_RGBA 3
#define IFS_PIXEL_GRAY 4
#define IFS_PIXEL_NV12 5

typedef struct ifs_image {
    const uint8_t *data;   /* the first pixel (of the Y plane) */
    const uint8_t *uv;     /* NV12: the first pair of the UV plane; NULL otherwise */
    int64_t stride;        /* bytes from a row to the next; at least a row */
    int64_t uv_stride;     /* NV12: the same for the UV plane */
    int32_t width, height; /* pixels, 1 to 2^20 */
    int32_t format;        /* IFS_PIXEL_... */
} ifs_image;

/*
 * Where the pixels go. RESIZE: the image is resized to resized_width x resized_height exactly as OpenCV's
 * INTER_LINEAR does for uint8, and laid on the canvas with its corner at (offset_x, offset_y); what falls outside is
 * cropped, what stays uncovered is filled. So letterbox, stretch, and resize with a crop are one operation. WARP: each
 * canvas pixel is sampled bilinearly at its centre carried through `to_source`; each of the four taps that lies outside
 * the image is the fill. All in integers (preprocess.h states them), so that every implementation gives the same
 * bytes.
 *
 * The functions below fill `to_source` for either kind; a RESIZE reads only the sizes and the offset. Every side is 1
 * to 2^20 pixels, ERR_INVALID_ARGUMENT otherwise.
 */
#define IFS_GEOMETRY_RESIZE 0
#define IFS_GEOMETRY_WARP 1

typedef struct ifs_geometry {
    int32_t kind; /* IFS_GEOMETRY_... */
    int32_t source_width, source_height;
    int32_t canvas_width, canvas_height;
    int32_t resized_width, resized_height; /* RESIZE only */
    int32_t offset_x, offset_y;            /* RESIZE only; negative crops */
    double to_source[6]; /* canvas to source, edge coordinates: x' = m0 x + m1 y + m2, y' = m3 x + ... */
} ifs_geometry;

/* YOLOv5's letterbox with its very rounding: r = min(ch/h, cw/w) (at most 1 unless scale_up), size round(w r) x
 * round(h r), the odd pixel of padding to the right and the bottom. */
ifs_status ifs_geometry_letterbox(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                  int32_t canvas_height, int32_t scale_up, ifs_geometry *out);

/* The same framing without rounding to whole pixels: one scale for both axes, centred, as a WARP. */
ifs_status ifs_geometry_letterbox_warp(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                       int32_t canvas_height, int32_t scale_up, ifs_geometry *out);

/* The whole image over the whole canvas, whatever that does to its proportions. */
ifs_status ifs_geometry_stretch(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                int32_t canvas_height, ifs_geometry *out);

/* Any size at any place: what the others of this kind are made of. YOLOX, say, lays floor(w r) x floor(h r) at (0, 0).
 */
ifs_status ifs_geometry_resize(int32_t source_width, int32_t source_height, int32_t canvas_width, int32_t canvas_height,
                               int32_t resized_width, int32_t resized_height, int32_t offset_x, int32_t offset_y,
                               ifs_geometry *out);

/* The shorter side to `resize` (the longer one rounded down, as torchvision does), then the centre canvas_width x
 * canvas_height of it (corner at round((size - crop) / 2), ties to even, as torchvision does). A side that is shorter
 * than the crop is padded, the odd pixel after it. */
ifs_status ifs_geometry_resize_crop(int32_t source_width, int32_t source_height, int32_t resize, int32_t canvas_width,
                                    int32_t canvas_height, ifs_geometry *out);

/* Any affine map, canvas to source, in edge coordinates. ERR_INVALID_ARGUMENT unless finite and invertible, and unless
 * the canvas's corners stay within 2^29 pixels of the source's. */
ifs_status ifs_geometry_affine(int32_t source_width, int32_t source_height, int32_t canvas_width, int32_t canvas_height,
                               const double to_source[6], ifs_geometry *out);

/* A pattern of rows: `take` neighbours in each `step`, from row `first` on. {0, 1, 1} is all of them. */
typedef struct ifs_rows {
    int32_t first, take, step;
} ifs_rows;

/*
 * The rows of the image that a RESIZE reads, where they stand in a pattern that leaves some out: one row or two in
 * each `step`, when the height is divided by a whole number above 2. Everything else reads all rows, as far as this
 * goes. `out` is the geometry for an image of these rows alone: it gives the same bytes.
 */
ifs_status ifs_geometry_rows(const ifs_geometry *geometry, ifs_rows *rows, ifs_geometry *out);

/* ---- 7. Preprocessing ----------------------------------------------------------------------------------------- */

#define IFS_ORDER_RGB 0
#define IFS_ORDER_BGR 1
#define IFS_ORDER_GRAY 2

#define IFS_LAYOUT_CHW 0
#define IFS_LAYOUT_HWC 1

/* What the network wants: y = x * scale + bias, rounded to float32 after each of the two operations, then to the dtype
 * (UINT8: rounded to nearest even and saturated). Colours are converted first, as OpenCV's cvtColor does, then resized.
 * Scale and bias are finite (ERR_INVALID_ARGUMENT). */
typedef struct ifs_pixel_transform {
    int32_t order; /* IFS_ORDER_...: the channels of the output */
    int32_t layout; /* IFS_LAYOUT_... */
    int32_t dtype; /* IFS_FLOAT32, IFS_FLOAT16 or IFS_UINT8 */
    uint8_t fill[4]; /* in the order of the output's channels, before the scaling; the fourth is not used */
    float scale[3]; /* a channel of the output each */
    float bias[3];
} ifs_pixel_transform;

/* Bytes that ifs_preprocess writes. 0 if the arguments are not valid. */
size_t ifs_preprocess_nbytes(const ifs_geometry *geometry, const ifs_pixel_transform *transform);

/* One image into `dst`, which may be a slice of a batch, aligned to an element; `nbytes` is what may be written there
 * (ERR_TOO_SMALL). The geometry's source size must be the image's (ERR_SHAPE). One pass, one thread, no state kept:
 * scratch memory of some tens of kilobytes is taken and given back (ERR_OUT_OF_MEMORY), and a converted image for a
 * WARP out of NV12, or out of colour to gray. */
ifs_status ifs_preprocess(const ifs_image *image, const ifs_geometry *geometry, const ifs_pixel_transform *transform,
                          void *dst, size_t nbytes);

/* ---- 8. Detection --------------------------------------------------------------------------------------------- */

/*
 * How a head lays out its output.
 *
 *   YOLOV5  [anchors, 5 + classes + extra]: cx, cy, w, h, objectness, classes. Score = objectness * class.
 *   YOLOV8  [4 + classes + extra, anchors]: cx, cy, w, h, classes (also YOLO11). Score = class.
 *   YOLOX   as YOLOV5, but the box is raw: centre = (xy + cell) * stride, size = exp(wh) * stride. The anchors are the
 *           cells of one grid after another, row by row, in the order of `strides`.
 *
 * The `extra` numbers of an anchor (mask coefficients, keypoints, an angle) are not read here. Each detection carries
 * the index of its anchor, so that they can be found after NMS.
 */
#define IFS_HEAD_YOLOV5 0
#define IFS_HEAD_YOLOV8 1
#define IFS_HEAD_YOLOX 2

#define IFS_MAX_STRIDES 8

typedef struct ifs_detect_params {
    int32_t head; /* IFS_HEAD_... */
    int32_t dtype; /* of the output: IFS_FLOAT32 or IFS_FLOAT16 */
    int32_t num_classes; /* at least 1 */
    int32_t num_anchors; /* candidates the head gives, 25,200 for YOLOv5 at 640 x 640 */
    int32_t num_extra; /* numbers of an anchor behind its classes; 0 for plain detection */
    int32_t multi_label; /* 0: the best class of an anchor; 1: each class above the threshold */
    int32_t class_agnostic; /* 1: boxes of different classes suppress one another */
    int32_t max_candidates; /* the best so many go into NMS; 0: all */
    int32_t max_detections; /* at most so many come out, at least 1 */
    float conf_threshold; /* kept: objectness and score strictly above it; 0 to 1 */
    float iou_threshold; /* suppressed: intersection over union strictly above it; 0 to 1 */
    int32_t num_strides; /* YOLOX; 0 for the other heads */
    int32_t strides[8]; /* YOLOX: 8, 16, 32 */
} ifs_detect_params;

/* A box in pixels of the image (edges, clipped to it), its score and class, and the index of its anchor. */
typedef struct ifs_detection {
    float x1, y1, x2, y2;
    float score;
    int32_t class_id;
    int32_t row; /* 0 to num_anchors - 1: a row of the output, of YOLOV8 a column */
} ifs_detection;

/* Nothing is lost in silence. */
typedef struct ifs_detect_stats {
    int64_t candidates; /* above the confidence threshold */
    int64_t dropped_candidates; /* of those, left out by max_candidates */
    int64_t kept; /* that NMS kept */
    int64_t dropped_detections; /* of those, left out by max_detections */
} ifs_detect_stats;

/* A detector's parameters with the scratch memory that its runs reuse. */
typedef struct ifs_detector ifs_detector;

/* Checks the parameters: the error names the one at fault with its value. */
ifs_status ifs_detector_create(const ifs_detect_params *params, ifs_detector **out);
void ifs_detector_destroy(ifs_detector *detector);

/*
 * One image's output to its boxes, best first; equal scores in the order of anchor, then class. `out` holds
 * max_detections; `count` are valid. Greedy NMS, exact: float32, a box is suppressed by a kept one when
 * inter > iou_threshold * (area_a + area_b - inter), evaluated as written, without fused operations.
 * A candidate whose score or (decoded) box is not finite is not one; the best class of an anchor is the lowest among
 * equal ones, and is sought among finite scores. A box of zero or negative size overlaps nothing: it neither suppresses
 * nor is suppressed, and comes out with its edges in order. `geometry` says how the image came to the network (YOLOX
 * takes the size of its grids from the canvas: ERR_SHAPE if they have not num_anchors cells). `stats` may be NULL.
 */
ifs_status ifs_detector_run(ifs_detector *detector, const void *output, const ifs_geometry *geometry,
                            ifs_detection *out, int32_t *count, ifs_detect_stats *stats);

/*
 * NMS alone, over `n` boxes (x1, y1, x2, y2 each). `class_ids` may be NULL (one class). Writes the indices of the kept
 * ones, best first, equal scores by index, and their number; `keep` holds n. Scores may be negative; a box of zero or
 * negative size is kept. Boxes or scores that are not finite: ERR_INVALID_ARGUMENT.
 */
ifs_status ifs_nms(const float *boxes, const float *scores, const int32_t *class_ids, int64_t n, float iou_threshold,
                   int64_t *keep, int64_t *count);

/* ---- 9. Classification ---------------------------------------------------------------------------------------- */

/* The `k` best of `n` scores (FLOAT32 or FLOAT16), best first, equal ones by index; with `softmax` over all n, computed
 * as exp(x - max) / sum in float32, the same bits on every machine. ERR_INVALID_ARGUMENT: NaN; a k not within 1 to n;
 * with `softmax`, a largest score that is infinite. */
ifs_status ifs_topk(const void *scores, int32_t dtype, int64_t n, int32_t k, int32_t softmax, int32_t *class_ids,
                    float *out_scores);

/* ---- 10. Devices --------------------------------------------------------------------------------------------- */

/* Everything here is ERR_NO_DEVICE in a CPU-only build, and on a machine without a driver or a GPU. Every call leaves
 * the calling thread's current device as it was. */

ifs_status ifs_device_count(int32_t *out);

typedef struct ifs_device_info {
    char name[256];
    int32_t major, minor; /* the compute capability */
    int32_t multiprocessors;
    uint64_t total_bytes, free_bytes;
} ifs_device_info;

ifs_status ifs_get_device_info(int32_t device, ifs_device_info *out);

/* A stream: what is queued on it runs in order. Ours do not wait for the legacy default stream, nor it for them. */
typedef struct ifs_stream ifs_stream;

ifs_status ifs_stream_create(int32_t device, ifs_stream **out);

/* Borrows a cudaStream_t. It must outlive the work that is queued on it, and the memories that were last used there. */
ifs_status ifs_stream_wrap(int32_t device, void *native, ifs_stream **out);
void ifs_stream_destroy(ifs_stream *stream);

int32_t ifs_stream_device(const ifs_stream *stream);
void *ifs_stream_native(const ifs_stream *stream); /* the cudaStream_t */
ifs_status ifs_stream_synchronize(ifs_stream *stream);

/* An event: a mark in a stream. */
typedef struct ifs_event ifs_event;

ifs_status ifs_event_create(int32_t device, int32_t timing, ifs_event **out);
void ifs_event_destroy(ifs_event *event);
ifs_status ifs_event_record(ifs_event *event, ifs_stream *stream);
ifs_status ifs_event_synchronize(ifs_event *event);
ifs_status ifs_event_query(ifs_event *event, int32_t *done);
ifs_status ifs_event_elapsed(ifs_event *start, ifs_event *stop, float *milliseconds);

/* What is queued on `stream` from now on waits for `event`. */
ifs_status ifs_stream_wait(ifs_stream *stream, ifs_event *event);

/* A graph: what was queued on a stream between begin and end, to be launched again in one go. Between them nothing may
 * be done that waits for the device. It holds the addresses it was captured with: when one of them changes, capture
 * anew. After a failure between begin and end, end still has to be called; it gives no graph then. */
typedef struct ifs_graph ifs_graph;

ifs_status ifs_graph_begin(ifs_stream *stream);
ifs_status ifs_graph_end(ifs_stream *stream, ifs_graph **out);
ifs_status ifs_graph_launch(ifs_graph *graph, ifs_stream *stream);
void ifs_graph_destroy(ifs_graph *graph);

/*
 * The device side for work on `stream`. A copy that is due is queued there, not waited for; work that was queued for
 * this memory on another stream is waited for by `stream`, not by the caller. From here on the memory belongs to
 * `stream`: the next access, on the host or for another stream, waits for what was queued on it by then.
 *
 * So the head stays true while copies are on their way: the host is not written while it is being copied out, and not
 * read before the copy in has arrived. NULL waits for everything, as ifs_memory_device does. A stream of another device
 * is ERR_INVALID_ARGUMENT.
 */
ifs_status ifs_memory_device_on(ifs_memory *memory, int32_t access, ifs_stream *stream, void **out);
ifs_status ifs_tensor_device_on(ifs_tensor *tensor, int32_t access, ifs_stream *stream, void **out);

/* Queues the copy to the host on `stream`, behind whatever writes the device side now. A later access on the host waits
 * for this copy alone, not for what is queued behind it. */
ifs_status ifs_memory_fetch(ifs_memory *memory, ifs_stream *stream);

/* The device side for somebody else, up to date and from here on the newer one. `native`, their cudaStream_t, waits for
 * what is queued for the tensor; the host does not. When their work is done, and what comes after it, is for them to
 * order. */
ifs_status ifs_tensor_lend(ifs_tensor *tensor, void *native, void **out);

/* 1 if an address of the host lies in page-locked memory that CUDA knows of, else 0. */
int32_t ifs_is_page_locked(const void *address);

/* The device that an address lies on, or IFS_NO_DEVICE for memory of the host. */
ifs_status ifs_pointer_device(const void *address, int32_t *out);

/* ---- 11. Batches ---------------------------------------------------------------------------------------------- */

/* Threads that share a batch out; the caller is one of them, so a pool of 1 starts none. Several threads may use one
 * pool, in turn. Where NULL is taken for a pool, the caller works alone; so it does in a child that was forked since,
 * which has the pool but none of its threads: there destroying it frees the child's copy. */
typedef struct ifs_workers ifs_workers;

ifs_status ifs_workers_create(int32_t threads, ifs_workers **out);
void ifs_workers_destroy(ifs_workers *workers);
int32_t ifs_workers_threads(const ifs_workers *workers);

/* `n` images, preprocessed side by side into `host` (`nbytes`: what may be written). With `dev`, each is queued for
 * its copy there on `stream` as soon as it is done; `host` is page-locked then, and not touched until the copies are.
 */
ifs_status ifs_preprocess_batch(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries,
                                int32_t n, const ifs_pixel_transform *transform, void *host, size_t nbytes, void *dev,
                                ifs_stream *stream);

/* Bytes that `n` images take on a device as ifs_upload lays them there: dense, each plane aligned to 256. */
ifs_status ifs_upload_nbytes(const ifs_image *images, const ifs_geometry *geometries, int32_t n, size_t *out);

/*
 * What `n` geometries read of their images, from the host to `dev`, queued on `stream`: whole images, or those rows
 * of them that ifs_geometry_rows tells (not of NV12, and pairs of rows only of dense images). Images in page-locked
 * memory are copied from where they lie, one copy each, and must stay there until that is done; all others go through
 * `staging`, page-locked and as large as `dev`, piece by piece. `out` gets the images as they will lie on the device,
 * and `ways` the geometries that go with them.
 */
ifs_status ifs_upload(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                      void *staging, void *dev, size_t nbytes, ifs_stream *stream, ifs_image *out, ifs_geometry *ways);

/* ---- 12. On the device: kernels ------------------------------------------------------------------------------- */

/*
 * The operations of sections 7 to 9 on device memory: the same arguments, the same checks, and the same bits. `stream`
 * is a cudaStream_t of `device` (NULL: the legacy default stream), and comes last. All calls queue their work and
 * return; they allocate nothing, wait for nothing and decide nothing by what is on the device, so that they can be
 * captured into a CUDA graph. A graph repeats a call with the images, geometries and addresses it was captured with.
 * What the pointers point to is the caller's, and stays until the work is done; that they are pointers of the device
 * cannot be checked. ERR_NO_DEVICE in a CPU-only build.
 */

/*
 * `n` images into one batch at `dst`, where `nbytes` may be written: image i becomes slice i, as ifs_preprocess
 * would make it from images[i] by geometries[i]. `images` and `geometries` are arrays on the host, the images' planes
 * lie on the device. The images may differ in size, format and geometry; the canvas is one for all (ERR_SHAPE). One
 * launch for up to 40 images; nothing is copied to the device but the launch itself. Read are only aligned words of
 * 4 bytes that hold a byte of the image, what lies between its rows included.
 */
ifs_status ifs_cuda_preprocess(const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                               const ifs_pixel_transform *transform, void *dst, size_t nbytes, int32_t device,
                               void *stream);

/* A detector's parameters with its workspace on the device. Its runs are queued on one stream, or ordered by events. */
typedef struct ifs_cuda_detector ifs_cuda_detector;

/* What a run writes for each image, `ifs_cuda_detections_nbytes(max_detections, 1)` bytes from one to the next (a
 * multiple of 8): this head, and max_detections of ifs_detection, of which `count` are valid and the others are left as
 * they were. */
typedef struct ifs_cuda_detections {
    ifs_detect_stats stats;
    int32_t count;
    int32_t reserved; /* 0 */
} ifs_cuda_detections;

/* Allocates the workspace, `ifs_cuda_detector_nbytes` bytes of `device`: for runs of up to `max_batch` images, 1 to
 * 65,535. It is room for min(max_batch, 48) images, as larger runs go in slices. */
ifs_status ifs_cuda_detector_create(const ifs_detect_params *params, int32_t max_batch, int32_t device,
                                    ifs_cuda_detector **out);
void ifs_cuda_detector_destroy(ifs_cuda_detector *detector); /* waits for the device */
size_t ifs_cuda_detector_nbytes(const ifs_cuda_detector *detector);

/*
 * The outputs of `n` images, one behind the other at `output`, to their boxes in `detections`, a block of the layout
 * above (`nbytes`: what may be written there; aligned to 8). Each image's boxes, order and statistics are those of
 * ifs_detector_run. `geometries` is an array on the host.
 */
ifs_status ifs_cuda_detector_run(ifs_cuda_detector *detector, const void *output, const ifs_geometry *geometries,
                                 int32_t n, void *detections, size_t nbytes, void *stream);

/* Bytes of the block of `n` images; 0 if an argument is not positive or the size overflows. */
size_t ifs_cuda_detections_nbytes(int32_t max_detections, int32_t n);

/* Image `index` of such a block that was copied to the host: `out` holds max_detections. `stats` may be NULL. A count
 * that cannot be is ERR_FORMAT. Works without a device. */
ifs_status ifs_cuda_detections_unpack(const void *block, size_t nbytes, int32_t max_detections, int32_t index,
                                      ifs_detection *out, int32_t *count, ifs_detect_stats *stats);

/*
 * The `k` best of each of `rows` rows of `n` scores: `class_ids` and `out_scores` are [rows, k] on the device, and each
 * row is as ifs_topk would give it. Meant for small k: the time grows with k * n. Where ifs_topk finds an error in the
 * scores (NaN, or with softmax an infinite maximum), the row's class_ids are -1 and its scores NaN.
 */
ifs_status ifs_cuda_topk(const void *scores, int32_t dtype, int64_t rows, int64_t n, int32_t k, int32_t softmax,
                         int32_t *class_ids, float *out_scores, int32_t device, void *stream);

/* ---- 13. Calibration ------------------------------------------------------------------------------------------ */

/*
 * What INT8 has to know of an activation, gathered a piece at a time: one pass over the data for the ranges, another
 * for the histograms of |x| up to the largest, and then a threshold T, so that the scale is T / 127. Nothing grows with
 * the amount of data. All variants give the same numbers.
 */

/* A running range; it starts as all zeros. */
typedef struct ifs_range {
    float min, max;    /* of the finite values; 0 while there is none */
    int64_t count;     /* values so far */
    int64_t nonfinite; /* of which NaN or infinite */
    int64_t zeros;     /* of which 0 */
} ifs_range;

/* Widens `range` by `count` values. */
ifs_status ifs_range_update(const float *x, int64_t count, ifs_range *range);

/*
 * Adds to bin floor(|x| * (num_bins / absmax)) for each value, in float32; values beyond `absmax` go into the last bin.
 * NaN and infinities are left out and added to `*nonfinite`, which may be NULL. ERR_INVALID_ARGUMENT: `absmax` is not
 * finite, not above 0, or so small that the factor is infinite; num_bins is not 1 to 65536.
 */
ifs_status ifs_histogram_add(const float *x, int64_t count, float absmax, int64_t *bins, int32_t num_bins,
                             int64_t *nonfinite);

/* Merges `num_bins` bins into `levels` levels (bin k into level floor(k * levels / num_bins)) and spreads each level's
 * sum equally over those of its bins that are not 0: [1, 0, 2, 3, 5, 3, 1, 7] in 2 levels is [2, 0, 2, 2, 4, 4, 4, 4].
 */
ifs_status ifs_quantize_expand(const double *bins, int32_t num_bins, int32_t levels, double *out);

/*
 * The candidate i from `levels` to num_bins - 1 with the least KL(P || Q), the first of equals. P is the first i bins
 * with everything beyond added to the last of them; Q is the first i bins *without* it, merged into `levels` levels and
 * spread over the bins where P is not 0; both are normalised (S. Migacz, "8-bit Inference with TensorRT", 2017). Were Q
 * made of P itself, i = levels would always win with Q = P. A Q of 0 where P is not is infinitely far; where all
 * candidates are, `best` is num_bins: nothing is to be cut off. The threshold is (best + 0.5) * absmax / num_bins.
 *
 * Zeros do not suffer from any scale, and after a ReLU they are so many that the search would see nothing else: take
 * them out of bin 0 first (ifs_range counts them).
 *
 * `plain` asks for the reference, which is slow; the other way gives the same `best`. `divergence` may be NULL.
 * ERR_INVALID_ARGUMENT: all bins are 0, or one is negative.
 */
ifs_status ifs_entropy_threshold(const int64_t *bins, int32_t num_bins, int32_t levels, int32_t plain, int32_t *best,
                                 double *divergence);

/* [/cdef] */

#ifdef __cplusplus
}
#endif
#endif /* INFERSDK_H */
