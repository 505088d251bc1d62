/*
 * infersdk.h - the native core of infersdk.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This header is the manual of the core. It goes from simple to advanced:
 *
 *   1. Status and errors      every function that can fail returns an ifs_status
 *   2. The library            version, build, the SIMD variant in use
 *   3. Element types          ifs_dtype, the same codes in memory and on disk
 *   4. Memory                 a host block and a device block that hold the same bytes (Caffe's SyncedMemory)
 *   5. Tensor                 a shape and a type over a memory; views, conversion, files
 *   6. Images                 what an image is, and where its pixels go (geometry)
 *   7. Preprocessing          one pass from an image to a network's input
 *   8. Detection              from a network's output to boxes: decoding, NMS, mapping back to the image
 *   9. Classification         softmax and top-k
 *  10. Masks                  instance masks from coefficients and prototypes; the class of each pixel
 *  11. Devices                devices, streams, events, graphs, and memory that is used on streams
 *  12. Batches                many images on many threads, and their copies to a device
 *  13. Kernels                the operations of sections 7 to 10 on a device
 *  14. Calibration            ranges and histograms of activations, and the thresholds for INT8
 *  15. Other processes        their shared memory, on the host and on a device
 *  16. Tracking               linear assignment, and track numbers for the boxes of a video
 *
 * Rules that hold everywhere
 *
 *   - Results go through `out` pointers. They are untouched on failure unless a function says otherwise.
 *   - Nothing prints, exits or aborts.
 *   - Destroy functions take NULL.
 *   - Who creates an object destroys it. Wrapping a pointer borrows it: the caller keeps it alive.
 *   - One thread uses a handle at a time. Different handles may be used in parallel, also where they share a memory.
 *     A function of a tensor that another thread uses changes nothing, and returns ERR_IN_USE.
 *   - `device` is the ordinal of a CUDA device. An address on a device is called `device_ptr`, or by its
 *     contents.
 *   - A stream is an ifs_stream everywhere. The cudaStream_t of another library is wrapped by ifs_stream_wrap.
 *   - `nbytes` is a size in bytes, and `count` one in elements. Coordinates are pixels with the origin at the top left
 *     edge: the centre of the first pixel is (0.5, 0.5).
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
 * Each status code once, with its text (as in libuv). Codes are stable: a released number keeps its meaning. The
 * binding generator reads these lines too.
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
    X(ERR_UNSUPPORTED, -12, "not supported")                                                                           \
    X(ERR_OVER_BUDGET, -13, "over the memory limit")                                                                   \
    X(ERR_IN_USE, -14, "used by two threads")

typedef int32_t ifs_status;

#define IFS__STATUS_ENUM(name, code, text) IFS_##name = (code),
enum { IFS_STATUS_MAP(IFS__STATUS_ENUM) IFS__STATUS_END = -999 };
#undef IFS__STATUS_ENUM

/* [cdef] The binding generator copies everything between the marks, so it holds only plain C declarations. */

/* The fixed text of a status code; "unknown status" for any other number. Never NULL. */
const char *ifs_status_text(ifs_status status);

/* The message of the last failed call of this thread: what was wrong, the values, the remedy. Never NULL; "" if no call
 * has failed. */
const char *ifs_last_error(void);

/* ---- 2. The library ------------------------------------------------------------------------------------------- */

/* The version of the library, "major.minor.patch". */
const char *ifs_version(void);

/* 1 if the library was built with its CUDA half, 0 if it is CPU-only. Does not say whether the machine has a GPU. */
int32_t ifs_has_cuda(void);

/*
 * The SIMD variants. PLAIN is the plain C reference, and every other variant gives the same bits. The first use chooses
 * the best variant that was built and that this processor can run. The environment variable INFERSDK_SIMD (plain, neon,
 * avx2, avx512) chooses a lower one; any other value has no effect.
 */
#define IFS_SIMD_PLAIN 0
#define IFS_SIMD_NEON 1
#define IFS_SIMD_AVX2 2
#define IFS_SIMD_AVX512 3

int32_t ifs_simd(void);                           /* the variant in use */
int32_t ifs_simd_best(void);                      /* the best variant of this build and processor */
ifs_status ifs_set_simd(int32_t simd); /* for the whole process, for tests; ERR_UNSUPPORTED if it cannot run */
const char *ifs_simd_name(int32_t simd); /* "plain", "avx2", ...; NULL for an unknown number */

/* ---- 3. Element types ----------------------------------------------------------------------------------------- */

/* The codes 0 to 3 are those of the tensor files that other C++ programs read; the further codes are ours. */
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

size_t ifs_dtype_size(int32_t dtype); /* bytes of an element; 0 for an unknown type */
const char *ifs_dtype_name(int32_t dtype); /* "float32", ...; NULL for an unknown type */

/* ---- 4. Memory ------------------------------------------------------------------------------------------------ */

/*
 * A block on the host and a block on a device that hold the same bytes. Both are lazy: a block is allocated at its
 * first use, and again only when more is needed than it holds. The head says which side is newer. An access copies only
 * if the other side is newer.
 *
 *     UNINITIALIZED --write host--> HOST --read device--> SYNCED <--read host-- DEVICE
 *                                    ^---- write host ------+------ write device ---^
 *
 * A memory is reference-counted: its creator holds one reference, and so does each tensor on it.
 */
typedef struct ifs_memory ifs_memory;

#define IFS_HEAD_UNINITIALIZED 0
#define IFS_HEAD_HOST 1
#define IFS_HEAD_DEVICE 2
#define IFS_HEAD_SYNCED 3

#define IFS_NO_DEVICE (-1) /* in place of a device: the memory is on the host alone */

/* The purpose of an access. WRITE promises to overwrite all bytes, so it never copies. */
#define IFS_READ 1
#define IFS_WRITE 2
#define IFS_READ_WRITE 3

/* A new, empty memory for `device` (a CUDA ordinal, or IFS_NO_DEVICE). The host block is aligned to 64 bytes; it is
 * page-locked if the memory has a device. */
ifs_status ifs_memory_create(int32_t device, ifs_memory **out);

/* Borrows `nbytes` bytes of host memory at `address`. The block is never grown or freed. A read-only memory refuses
 * write access (ERR_READ_ONLY). The head is HOST. */
ifs_status ifs_memory_wrap_host(void *address, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out);

/* Borrows memory of `device` in the same way. The head is DEVICE. */
ifs_status ifs_memory_wrap_device(void *address, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out);

/* Drops the caller's reference. The last reference frees both blocks. */
void ifs_memory_destroy(ifs_memory *memory);

/* Sets the size to `nbytes`. The content is kept if it fits the capacity, except for bytes behind a later write. Beyond
 * the capacity, new blocks are allocated and their content is undefined (head UNINITIALIZED); for a borrowed block that
 * is ERR_TOO_SMALL. */
ifs_status ifs_memory_resize(ifs_memory *memory, size_t nbytes);

/* The address of the host side, brought up to date for `access`. */
ifs_status ifs_memory_host_ptr(ifs_memory *memory, int32_t access, void **out);

typedef struct ifs_stream ifs_stream; /* section 11 */

/* The address of the device side, brought up to date for `access`. With `stream` NULL, the call waits until the copy is
 * done; section 11 says what a stream does. ERR_NO_DEVICE for a memory without a device, a CPU-only build, or a machine
 * without a GPU. */
ifs_status ifs_memory_device_ptr(ifs_memory *memory, int32_t access, ifs_stream *stream, void **out);

int32_t ifs_memory_head(const ifs_memory *memory);
int32_t ifs_memory_device(const ifs_memory *memory); /* the ordinal, or IFS_NO_DEVICE */
size_t ifs_memory_nbytes(const ifs_memory *memory);
size_t ifs_memory_host_capacity(const ifs_memory *memory);
size_t ifs_memory_device_capacity(const ifs_memory *memory);

/*
 * A hold on one of the two blocks. Until it is released, the block keeps its address and stays valid, even if the
 * memory grows or is destroyed. So a view, such as a NumPy array, can outlive its tensor. A hold on a borrowed block
 * does not keep the lender alive. ERR_INVALID_ARGUMENT if that side has no block yet.
 */
typedef struct ifs_block ifs_block;

#define IFS_SIDE_HOST 0
#define IFS_SIDE_DEVICE 1

ifs_status ifs_memory_hold(ifs_memory *memory, int32_t side, ifs_block **out);
void ifs_block_release(ifs_block *block);

/* The bytes that all memories of the process hold now, and their peaks. Borrowed blocks do not count. */
typedef struct ifs_memory_stats {
    uint64_t host_bytes, host_peak, pinned_bytes, pinned_peak, device_bytes, device_peak;
    uint64_t memories; /* the number of memories that exist now */
} ifs_memory_stats;

void ifs_get_memory_stats(ifs_memory_stats *out);

/*
 * A budget limits the device memory that a group holds together: the device blocks of memories, the workspaces of
 * decoders (section 13), and reservations, which stand for what another library allocates. What would exceed the limit
 * is ERR_OVER_BUDGET, and nothing is allocated. A memory or decoder belongs to the budget that its thread used when it
 * was created, for all its life. Any number of threads may use a budget at the same time.
 */
typedef struct ifs_budget ifs_budget;

/* `name` is for messages. The budget lives until its creator and all that belong to it are destroyed. */
ifs_status ifs_budget_create(const char *name, uint64_t limit, ifs_budget **out);
void ifs_budget_destroy(ifs_budget *budget);

uint64_t ifs_budget_used(const ifs_budget *budget); /* bytes that are counted now */
uint64_t ifs_budget_peak(const ifs_budget *budget); /* the most that were counted at a time */

/* From now on this thread uses `budget`; NULL is none. Returns the one that it used before. The caller keeps a budget
 * that is in use alive. */
ifs_budget *ifs_budget_use(ifs_budget *budget);

typedef struct ifs_reservation ifs_reservation;

/* Counts `nbytes` until the reservation is destroyed. */
ifs_status ifs_reservation_create(ifs_budget *budget, uint64_t nbytes, ifs_reservation **out);
void ifs_reservation_destroy(ifs_reservation *reservation);

/* ---- 5. Tensor ------------------------------------------------------------------------------------------------ */

/* A shape and an element type over a memory, always dense and in C order. A tensor without dimensions is a scalar. A
 * dimension may be 0. */
typedef struct ifs_tensor ifs_tensor;

#define IFS_MAX_NDIM 16

/* A new tensor on a new memory. Nothing is allocated before the first access. */
ifs_status ifs_tensor_create(int32_t dtype, int32_t ndim, const int64_t *dims, int32_t device, ifs_tensor **out);

/* A tensor over an existing memory, from byte `offset` on. It takes a reference of its own. ERR_TOO_SMALL if it does
 * not fit, ERR_INVALID_ARGUMENT if the offset is not a multiple of the element size. */
ifs_status ifs_tensor_on(ifs_memory *memory, size_t offset, int32_t dtype, int32_t ndim, const int64_t *dims,
                         ifs_tensor **out);

/* A view of [start, stop) of the first axis. It shares the memory and its head. */
ifs_status ifs_tensor_slice(const ifs_tensor *tensor, int64_t start, int64_t stop, ifs_tensor **out);

void ifs_tensor_destroy(ifs_tensor *tensor);

/* Gives the tensor a new shape. If it fits the capacity, content and addresses are kept; else new blocks are allocated,
 * with undefined content. A view cannot outgrow the range that it was made over (ERR_TOO_SMALL). */
ifs_status ifs_tensor_resize(ifs_tensor *tensor, int32_t ndim, const int64_t *dims);

int32_t ifs_tensor_dtype(const ifs_tensor *tensor);
int32_t ifs_tensor_ndim(const ifs_tensor *tensor);
const int64_t *ifs_tensor_dims(const ifs_tensor *tensor); /* valid until the next resize */
size_t ifs_tensor_count(const ifs_tensor *tensor);
size_t ifs_tensor_nbytes(const ifs_tensor *tensor);
int32_t ifs_tensor_head(const ifs_tensor *tensor);
int32_t ifs_tensor_device(const ifs_tensor *tensor); /* the ordinal, or IFS_NO_DEVICE */
ifs_memory *ifs_tensor_memory(const ifs_tensor *tensor); /* borrowed */

/* The address of the first element on the host or the device, as ifs_memory_host_ptr and ifs_memory_device_ptr give it.
 * A view of a part keeps the rest of its memory valid: its WRITE copies if the other side is newer. */
ifs_status ifs_tensor_host_ptr(ifs_tensor *tensor, int32_t access, void **out);
ifs_status ifs_tensor_device_ptr(ifs_tensor *tensor, int32_t access, ifs_stream *stream, void **out);

/* The address on `side`, and a hold on its block, in one step: for views that are handed out while another thread may
 * resize the tensor. */
ifs_status ifs_tensor_hold(ifs_tensor *tensor, int32_t side, int32_t access, void **out, ifs_block **block);

/* The element number of index[0..n). Missing last indices are 0. ERR_INVALID_ARGUMENT names an index that is out of
 * range. */
ifs_status ifs_tensor_offset(const ifs_tensor *tensor, int32_t n, const int64_t *index, int64_t *out);

/* Copies the content of `src` to `dst`, which must have as many elements (ERR_SHAPE), and converts the element type as
 * ifs_convert does. The copy runs on the host unless the types are equal, both tensors have a device, the source is up
 * to date there, and they are not overlapping parts of one memory. Tensors of different types must not overlap, nor
 * different memories on a device (ERR_INVALID_ARGUMENT). */
ifs_status ifs_tensor_copy(ifs_tensor *dst, ifs_tensor *src);

/*
 * Converts `count` elements from one type to another. Between integers the value is saturated. From floating point to
 * an integer it is truncated towards zero and saturated, and NaN gives 0. To float16 it is rounded to the nearest, ties
 * to even. To bool, 0 is false and everything else (NaN too) is true.
 */
ifs_status ifs_convert(const void *src, int32_t src_dtype, void *dst, int32_t dst_dtype, size_t count);

/*
 * Files. Little-endian: u32 magic 0xFCCFE2E2 | u32 ndims | u32 dtype | i32 dims[ndims] | raw C-order data.
 * The writer may leave a part of a file after an error. The reader checks everything: a file that is truncated, longer
 * than its header says, of an unknown type, or whose sizes overflow is ERR_FORMAT.
 */
ifs_status ifs_tensor_save(ifs_tensor *tensor, const char *path);
ifs_status ifs_tensor_load(const char *path, int32_t device, ifs_tensor **out);

/* Reads the same layout from memory. */
ifs_status ifs_tensor_parse(const void *data, size_t nbytes, int32_t device, ifs_tensor **out);

/* ---- 6. Images ---------------------------------------------------------------------------------------------- */

/* The order of the bytes of a pixel. NV12 has a plane of Y and a plane of interleaved U and V at half the size (BT.601,
 * limited range, as OpenCV converts it to BGR); its width and height are even. It is treated as the BGR image that it
 * encodes, so gray is computed from BGR and is not the Y plane. */
#define IFS_PIXEL_BGR 0
#define IFS_PIXEL_RGB 1
#define IFS_PIXEL_BGRA 2
#define IFS_PIXEL_RGBA 3
#define IFS_PIXEL_GRAY 4
#define IFS_PIXEL_NV12 5

typedef struct ifs_image {
    const uint8_t *data; /* the first pixel (of the Y plane) */
    const uint8_t *uv; /* NV12: the first pair of the UV plane; NULL otherwise */
    int64_t stride; /* bytes from a row to the next; at least the bytes of a row */
    int64_t uv_stride; /* NV12: the same for the UV plane */
    int32_t width, height; /* pixels, 1 to 2^20 */
    int32_t format; /* IFS_PIXEL_... */
} ifs_image;

/*
 * Where the pixels of an image go on the network's canvas.
 *
 * RESIZE: the image is resized to resized_width x resized_height exactly as OpenCV's INTER_LINEAR does for uint8, and
 * put on the canvas with its corner at (offset_x, offset_y). Pixels outside the canvas are cropped; the uncovered
 * canvas gets the fill. So letterbox, stretch, and resize with a crop are one operation.
 *
 * WARP: each canvas pixel is sampled bilinearly at its centre, mapped by `to_source`. Each of the four taps that lies
 * outside the image is the fill.
 *
 * Both are computed in integers (pixel_math.h defines them), so every implementation gives the same bytes. The
 * functions below fill `to_source` for both kinds; a RESIZE reads only the sizes and the offset. Every side is 1 to
 * 2^20 pixels, ERR_INVALID_ARGUMENT otherwise.
 */
#define IFS_GEOMETRY_RESIZE 0
#define IFS_GEOMETRY_WARP 1

typedef struct ifs_geometry {
    int32_t kind; /* IFS_GEOMETRY_... */
    int32_t source_width, source_height;
    int32_t canvas_width, canvas_height;
    int32_t resized_width, resized_height; /* RESIZE only */
    int32_t offset_x, offset_y; /* RESIZE only; negative crops */
    double to_source[6]; /* canvas to source, edge coordinates: x' = m0 x + m1 y + m2, y' = m3 x + ... */
} ifs_geometry;

/* YOLOv5's letterbox with the same rounding: r = min(ch/h, cw/w) (at most 1 unless scale_up), size round(w r) x
 * round(h r); an odd pixel of padding goes to the right or the bottom. */
ifs_status ifs_geometry_letterbox(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                  int32_t canvas_height, int32_t scale_up, ifs_geometry *out);

/* The letterbox without rounding to whole pixels: one scale for both axes, centred, as a WARP. */
ifs_status ifs_geometry_letterbox_warp(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                       int32_t canvas_height, int32_t scale_up, ifs_geometry *out);

/* The whole image over the whole canvas; its proportions may change. */
ifs_status ifs_geometry_stretch(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                int32_t canvas_height, ifs_geometry *out);

/* Any size at any offset. The functions above call it; YOLOX puts floor(w r) x floor(h r) at (0, 0). */
ifs_status ifs_geometry_resize(int32_t source_width, int32_t source_height, int32_t canvas_width, int32_t canvas_height,
                               int32_t resized_width, int32_t resized_height, int32_t offset_x, int32_t offset_y,
                               ifs_geometry *out);

/* Resizes the shorter side to `resize` (the longer one is rounded down, as torchvision does), then crops the centre of
 * canvas_width x canvas_height (corner at round((size - crop) / 2), ties to even, as torchvision does). A side that is
 * shorter than the crop is padded; an odd pixel goes to its end. */
ifs_status ifs_geometry_resize_crop(int32_t source_width, int32_t source_height, int32_t resize, int32_t canvas_width,
                                    int32_t canvas_height, ifs_geometry *out);

/* Any affine map from canvas to source, in edge coordinates. ERR_INVALID_ARGUMENT unless it is finite and invertible,
 * and maps the corners of the canvas to within 2^29 pixels of the source's corner. */
ifs_status ifs_geometry_affine(int32_t source_width, int32_t source_height, int32_t canvas_width, int32_t canvas_height,
                               const double to_source[6], ifs_geometry *out);

/* A pattern of rows: `take` neighbours in every `step` rows, from row `first` on. {0, 1, 1} is all rows. */
typedef struct ifs_rows {
    int32_t first, take, step;
} ifs_rows;

/*
 * The rows of the image that a RESIZE reads. When the height is divided by a whole number above 2, these are one row or
 * two in every `step`; for every other geometry, all rows are returned. `out` is the geometry for an image of these
 * rows alone: it gives the same bytes.
 */
ifs_status ifs_geometry_rows(const ifs_geometry *geometry, ifs_rows *rows, ifs_geometry *out);

/* ---- 7. Preprocessing ----------------------------------------------------------------------------------------- */

#define IFS_ORDER_RGB 0
#define IFS_ORDER_BGR 1
#define IFS_ORDER_GRAY 2

#define IFS_LAYOUT_CHW 0
#define IFS_LAYOUT_HWC 1

/* The input that the network expects: y = x * scale + bias, rounded to float32 after each of the two operations, then
 * to the dtype (UINT8: to the nearest, ties to even, saturated). Colours are converted first, as OpenCV's cvtColor
 * does, then resized. Scale and bias must be finite (ERR_INVALID_ARGUMENT). */
typedef struct ifs_pixel_transform {
    int32_t order; /* IFS_ORDER_...: the channels of the output */
    int32_t layout; /* IFS_LAYOUT_... */
    int32_t dtype; /* IFS_FLOAT32, IFS_FLOAT16 or IFS_UINT8 */
    uint8_t fill[4]; /* in the order of the output's channels, before scaling; the fourth is not used */
    float scale[3]; /* one for each channel of the output */
    float bias[3];
} ifs_pixel_transform;

/* The bytes that ifs_preprocess writes; 0 if an argument is not valid. */
size_t ifs_preprocess_nbytes(const ifs_geometry *geometry, const ifs_pixel_transform *transform);

/* Preprocesses one image to `dst`, which may be a slice of a batch and is aligned to an element. `nbytes` is the space
 * there (ERR_TOO_SMALL). The geometry must be one for the image's size (ERR_SHAPE). It runs in one pass on one thread,
 * and keeps no state: it allocates and frees some tens of kilobytes of scratch memory (ERR_OUT_OF_MEMORY), and a
 * converted image for a WARP of NV12 or of colour to gray. */
ifs_status ifs_preprocess(const ifs_image *image, const ifs_geometry *geometry, const ifs_pixel_transform *transform,
                          void *dst, size_t nbytes);

/*
 * Resizing with a filter that takes all pixels of the source into account, byte for byte as Image.resize of Pillow 13:
 * BILINEAR is a triangle, BICUBIC Keys' cubic with a = -0.5, both stretched where the image shrinks. (The RESIZE of a
 * geometry is OpenCV's INTER_LINEAR, which looks at four pixels.) The image is resized to width x height, and the part
 * of crop_width x crop_height at (x, y) of that is written to `out`, packed, in the order of the image's channels and
 * without an alpha channel. NV12 is ERR_UNSUPPORTED.
 */
#define IFS_FILTER_BILINEAR 0
#define IFS_FILTER_BICUBIC 1

ifs_status ifs_resample(const ifs_image *image, int32_t width, int32_t height, int32_t filter, int32_t x, int32_t y,
                        int32_t crop_width, int32_t crop_height, uint8_t *out);

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
#define IFS_DETECT_HEAD_YOLOV5 0
#define IFS_DETECT_HEAD_YOLOV8 1
#define IFS_DETECT_HEAD_YOLOX 2

#define IFS_MAX_STRIDES 8

typedef struct ifs_detect_params {
    int32_t head; /* IFS_DETECT_HEAD_... */
    int32_t dtype; /* of the output: IFS_FLOAT32 or IFS_FLOAT16 */
    int32_t num_classes; /* at least 1 */
    int32_t num_anchors; /* boxes that the head gives: 25,200 for YOLOv5 at 640 x 640 */
    int32_t num_extra; /* numbers of an anchor behind its classes; 0 for plain detection */
    int32_t multi_label; /* 0: the best class of an anchor; 1: each class above the threshold */
    int32_t class_agnostic; /* 1: boxes of different classes suppress one another */
    int32_t max_candidates; /* NMS gets the best so many; 0: all */
    int32_t max_detections; /* the limit of the result; at least 1 */
    float conf_threshold; /* objectness and score of a candidate are strictly above it; 0 to 1 */
    float iou_threshold; /* a box is suppressed if its intersection over union is strictly above it; 0 to 1 */
    int32_t num_strides; /* YOLOX; 0 for the other heads */
    int32_t strides[8]; /* YOLOX: 8, 16, 32 */
    /* [num_classes] 1 for each class that counts, 0 for the others, at least one 1; NULL: all count. A class that does
     * not count has no scores: none of its boxes is a candidate, or the best one of an anchor. */
    const uint8_t *class_mask;
} ifs_detect_params;

/* A box in pixels of the image (edges, clipped to it), its score and class, and the index of its anchor. */
typedef struct ifs_detection {
    float x1, y1, x2, y2;
    float score;
    int32_t class_id;
    int32_t row; /* 0 to num_anchors - 1: a row of the output, of YOLOV8 a column */
} ifs_detection;

/* The numbers of candidates and detections, kept and dropped. */
typedef struct ifs_detect_stats {
    int64_t candidates; /* above the confidence threshold */
    int64_t dropped_candidates; /* of those, dropped by max_candidates */
    int64_t kept; /* detections that NMS kept */
    int64_t dropped_detections; /* of those, dropped by max_detections */
} ifs_detect_stats;

/* The parameters of a decoder, and the scratch memory that its runs reuse. */
typedef struct ifs_detection_decoder ifs_detection_decoder;

/* Checks the parameters: the error names the wrong one with its value. `class_mask` is copied. */
ifs_status ifs_detection_decoder_create(const ifs_detect_params *params, ifs_detection_decoder **out);
void ifs_detection_decoder_destroy(ifs_detection_decoder *decoder);

/*
 * Decodes one image's output to boxes, best first; equal scores come in the order of anchor, then class. `out` holds
 * max_detections, of which `count` are written.
 *
 * NMS is greedy and exact, in float32: a kept box suppresses another one if
 * inter > iou_threshold * (area_a + area_b - inter), evaluated as written, without fused operations. A box of zero or
 * negative size overlaps nothing: it neither suppresses nor is suppressed, and its edges come out in order.
 *
 * A candidate has a finite score and a finite decoded box. The best class of an anchor is the one with the highest
 * finite score, of equal ones the lowest. `geometry` says how the image came to the network. YOLOX takes the size of
 * its grids from the canvas (ERR_SHAPE if they do not have num_anchors cells). `stats` may be NULL. While another
 * thread runs the decoder, the result is ERR_IN_USE, and nothing is written.
 */
ifs_status ifs_detection_decoder_run(ifs_detection_decoder *decoder, const void *output, const ifs_geometry *geometry,
                                     ifs_detection *out, int32_t *count, ifs_detect_stats *stats);

/*
 * A raw head: what a network's last convolutions give, which no part of the network decodes. Nearly all of it is below
 * the threshold, so a decoder that starts here computes the few boxes that count, and the network moves less memory.
 * With s for the sigmoid, and `cell` for the column and row of a position:
 *
 *   YOLOV5  one map a level, [anchors * (5 + classes + extra), height, width].
 *           Centre = (2 s(xy) - 0.5 + cell) * stride, size = (2 s(wh))^2 * anchor, score = s(objectness) * s(class).
 *           Rows count the levels, then the anchors, then the positions.
 *   YOLOV8  two maps a level, [4 * bins, height, width] and [classes, height, width]. The distances of the left, upper,
 *           right and lower edge from cell + 0.5 are sum(softmax(logits) * bins) * stride; score = s(class). Rows count
 *           the levels, then the positions. `extra` is 0.
 *
 * A level of YOLOV5 may also be the float32 features of which its last convolution, of 1 x 1, would make the map. Then
 * the objectness of all boxes is computed here, and the other values only where it is above the threshold. A value is
 * bias + weight * feature + ..., in the order of the features, each product and each sum rounded to float32.
 *
 * A row has the number that it has in the output of the same network with its decoding.
 */
#define IFS_MAX_LEVELS 8
#define IFS_MAX_CELL_ANCHORS 8
#define IFS_MAX_BINS 64

typedef struct ifs_detect_level {
    int32_t width, height; /* of the map: cells */
    int32_t stride; /* pixels of the canvas from cell to cell */
    int32_t num_anchors; /* boxes of a cell; 1 for YOLOV8 */
    int32_t num_features; /* YOLOV5: 0 for a map; else the features [num_features, height, width] stand in its place */
    float anchors[16]; /* YOLOV5: width and height of each, in pixels of the canvas; above 0 */
    const float *weights; /* [channels of the map, num_features] of the convolution; NULL for a map */
    const float *bias; /* [channels of the map]; NULL: zeros */
} ifs_detect_level;

typedef struct ifs_raw_head {
    int32_t num_levels; /* at least 1 */
    ifs_detect_level levels[8];
    int32_t num_bins; /* YOLOV8: the values of a distance, 16; 0 for YOLOV5 */
    float bins[64]; /* YOLOV8: 0, 1, 2, ...; finite */
} ifs_raw_head;

/* As ifs_detection_decoder_create, for the head YOLOV5 or YOLOV8 in its raw form. The levels have num_anchors rows
 * (ERR_SHAPE). Weights and biases are copied. */
ifs_status ifs_detection_decoder_create_raw(const ifs_detect_params *params, const ifs_raw_head *raw,
                                            ifs_detection_decoder **out);

/* As ifs_detection_decoder_run, from the maps or features of one image, in the order of the levels. */
ifs_status ifs_detection_decoder_run_raw(ifs_detection_decoder *decoder, const void *const *maps,
                                         const ifs_geometry *geometry, ifs_detection *out, int32_t *count,
                                         ifs_detect_stats *stats);

/* How NMS compares two boxes: by their intersection over their union, or over the area of the smaller one, which finds
 * a box that was cut in the whole one. */
#define IFS_MATCH_IOU 0
#define IFS_MATCH_SMALLER 1

/*
 * NMS alone, over `n` boxes (x1, y1, x2, y2 each). `class_ids` may be NULL (one class). Writes the indices of the kept
 * boxes to `keep`, which holds n, best first and equal scores by index, and their number to `count`. A box is
 * suppressed by a kept one if their match (IFS_MATCH_...) is above `threshold`. `keepers`, if not NULL, holds n: for
 * each box the index of the best kept box that suppresses it, for a kept one its own. Scores may be negative. A box of
 * zero or negative size is kept. ERR_INVALID_ARGUMENT if a box or score is not finite.
 */
ifs_status ifs_nms(const float *boxes, const float *scores, const int32_t *class_ids, int64_t n, int32_t match,
                   float threshold, int64_t *keep, int64_t *count, int64_t *keepers);

/*
 * Oriented boxes: x and y of the centre, width and height, and the angle in radians by which the side of the width is
 * turned from the x axis towards the y axis.
 *
 * Fast NMS (D. Bolya et al., "YOLACT", 2019) over `n` of them, five numbers each: a box is dropped if a better one of
 * its class overlaps it by more than `iou_threshold`, also one that is dropped itself. The overlap is the probabilistic
 * IoU that oriented_math.h defines. Otherwise as ifs_nms.
 */
ifs_status ifs_nms_oriented(const float *boxes, const float *scores, const int32_t *class_ids, int64_t n,
                            float iou_threshold, int64_t *keep, int64_t *count);

/* ---- 9. Classification ---------------------------------------------------------------------------------------- */

/* The `k` best of `n` scores (FLOAT32 or FLOAT16), best first, equal ones by index. With `softmax`, the scores become
 * exp(x - max) / sum over all n, in float32, with the same bits on every machine. ERR_INVALID_ARGUMENT: a score is NaN;
 * k is not 1 to n; with `softmax`, the largest score is infinite. */
ifs_status ifs_topk(const void *scores, int32_t dtype, int64_t n, int32_t k, int32_t softmax, int32_t *class_ids,
                    float *out_scores);

/* ---- 10. Masks ------------------------------------------------------------------------------------------------ */

/*
 * Instance segmentation heads give each anchor a few mask coefficients (the extra numbers of section 8), and each image
 * a set of prototypes. A mask is sigmoid(coefficients x prototypes), resized to the network's canvas and, without the
 * padding, to the image, both bilinearly; cropped to the box of its detection; and above the threshold. mask_math.h
 * defines the arithmetic, and all variants and the device give the same bits.
 */

#define IFS_MAX_COEFFICIENTS 256

typedef struct ifs_mask_params {
    int32_t dtype; /* of the prototypes: IFS_FLOAT32 or IFS_FLOAT16 */
    int32_t num_coefficients; /* 1 to IFS_MAX_COEFFICIENTS */
    int32_t width, height; /* of a prototype; at most those of the canvas */
    float threshold; /* a pixel belongs to the mask if its value is above it; at least 0, below 1 */
} ifs_mask_params;

/* The pixels of one mask: bit x % 8 of byte offset + y * stride + x / 8 is pixel (x, y) of the crop. All pixels of the
 * image outside the crop are 0, and so are the bits behind a row. */
typedef struct ifs_mask {
    int32_t x, y, width, height; /* the crop, in pixels of the image; it may be empty */
    int32_t stride; /* bytes from a row to the next, a multiple of 4 */
    int32_t reserved; /* 0 */
    int64_t offset; /* of the first byte, a multiple of 4 */
} ifs_mask;

/* The layout of the masks of `n` detections: the crop of each is its box (the pixels c with x1 <= c < x2), as far as
 * the canvas shows the image. `nbytes` receives the bytes of all masks. The geometry is a RESIZE, or a WARP that
 * neither rotates nor shears (ERR_UNSUPPORTED). */
ifs_status ifs_masks_layout(const ifs_mask_params *params, const ifs_geometry *geometry,
                            const ifs_detection *detections, int32_t n, ifs_mask *masks, size_t *nbytes);

typedef struct ifs_workers ifs_workers; /* section 12 */

/* Writes `n` masks with this layout to `bits`. `prototypes` is [num_coefficients, height, width], and `coefficients` is
 * [n, num_coefficients]. `workers` may be NULL. */
ifs_status ifs_masks_assemble(ifs_workers *workers, const ifs_mask_params *params, const void *prototypes,
                              const float *coefficients, const ifs_geometry *geometry, const ifs_mask *masks, int32_t n,
                              uint8_t *bits, size_t nbytes);

/* The run lengths of a mask in an image, as COCO defines them: down the columns, beginning with a run of zeros, which
 * may be empty. `bits` points to the first row of the mask. `runs` holds `capacity`; `count` receives the number of
 * runs, also where that is more (ERR_TOO_SMALL). */
ifs_status ifs_mask_runs(const ifs_mask *mask, const uint8_t *bits, int32_t image_width, int32_t image_height,
                         uint32_t *runs, int64_t capacity, int64_t *count);

/*
 * Class maps: semantic segmentation gives scores for each class at each of width x height points of the canvas. They
 * are resized bilinearly to the image, without the padding, and each pixel gets the class with the highest score, of
 * equal ones the first; with a single class, 1 where its score is above the threshold and 0 elsewhere. Where the four
 * points around a pixel have the same class, the pixel has it too: no weighted mean of theirs has another. Pixels that
 * the canvas does not show are IFS_NO_CLASS. class_map_math.h defines the arithmetic; all variants and the device give
 * the same bits.
 */
#define IFS_NO_CLASS 255

typedef struct ifs_class_map_params {
    int32_t dtype; /* of the scores: IFS_FLOAT32 or IFS_FLOAT16 */
    int32_t num_classes; /* 1 to 255 */
    int32_t width, height; /* of the scores; at most those of the canvas */
    int32_t layout; /* IFS_LAYOUT_CHW: [classes, height, width], or IFS_LAYOUT_HWC: [height, width, classes] */
    float threshold; /* for a single class; finite */
} ifs_class_map_params;

/* The class of each pixel of the image, row by row: source_width x source_height bytes at `class_ids`, where `nbytes`
 * may be written. The geometry is a RESIZE, or a WARP that neither rotates nor shears (ERR_UNSUPPORTED). */
ifs_status ifs_class_map(const ifs_class_map_params *params, const void *scores, const ifs_geometry *geometry,
                         uint8_t *class_ids, size_t nbytes);

/* Maps of numbers (depth, anomaly scores, mattes): width x height points of the canvas, resized to the image without
 * the padding, whose points take no part. Pixel centres correspond, as PyTorch's interpolate has them without
 * align_corners. */
typedef struct ifs_float_map_params {
    int32_t dtype; /* IFS_FLOAT32 or IFS_FLOAT16 */
    int32_t width, height; /* of the map; at most those of the canvas */
    int32_t filter; /* IFS_FILTER_BILINEAR, or IFS_FILTER_BICUBIC with a = -0.75; neither averages where it shrinks */
} ifs_float_map_params;

/* The value of each pixel of the image, row by row: source_width x source_height floats at `out`, where `nbytes` may be
 * written; NaN where the canvas does not show the image. The geometry is as for ifs_class_map. */
ifs_status ifs_float_map(const ifs_float_map_params *params, const void *values, const ifs_geometry *geometry,
                         float *out, size_t nbytes);

/* ---- 11. Devices --------------------------------------------------------------------------------------------- */

/* Every function of this section is ERR_NO_DEVICE in a CPU-only build, and on a machine without a driver or a GPU.
 * Every call but ifs_device_select leaves the current device of the calling thread unchanged. */

ifs_status ifs_device_count(int32_t *out);

/* Makes `device` the current one of the calling thread, for libraries that use the thread's context; `previous` gets
 * the one before. */
ifs_status ifs_device_select(int32_t device, int32_t *previous);

typedef struct ifs_device_info {
    char name[256];
    int32_t major, minor; /* the compute capability */
    int32_t multiprocessors;
    uint64_t total_bytes, free_bytes;
} ifs_device_info;

ifs_status ifs_get_device_info(int32_t device, ifs_device_info *out);

/* A stream runs the work that is queued on it in order. This one does not wait for the legacy default stream, nor that
 * one for it. */
ifs_status ifs_stream_create(int32_t device, ifs_stream **out);

/* Borrows a cudaStream_t of `device`; NULL is its legacy default stream. It must outlive the work that is queued on it,
 * and the memories that were last used on it. */
ifs_status ifs_stream_wrap(int32_t device, void *native, ifs_stream **out);
void ifs_stream_destroy(ifs_stream *stream);

int32_t ifs_stream_device(const ifs_stream *stream); /* the ordinal */
void *ifs_stream_native(const ifs_stream *stream); /* the cudaStream_t */
ifs_status ifs_stream_synchronize(ifs_stream *stream);

/* An event marks a point in a stream. */
typedef struct ifs_event ifs_event;

ifs_status ifs_event_create(int32_t device, ifs_event **out);
void ifs_event_destroy(ifs_event *event);
ifs_status ifs_event_record(ifs_event *event, ifs_stream *stream);
ifs_status ifs_event_synchronize(ifs_event *event);
ifs_status ifs_event_query(ifs_event *event, int32_t *done);

/* Work that is queued on `stream` from now on waits for `event`. */
ifs_status ifs_stream_wait(ifs_stream *stream, ifs_event *event);

/* Queues a copy of `src` into `dst` on `stream`, and does not wait for it. Both have the same element type and as many
 * elements, on the stream's device, and they do not overlap. `src` stays as it is until the copy is done. */
ifs_status ifs_tensor_copy_on(ifs_tensor *dst, ifs_tensor *src, ifs_stream *stream);

/* A CUDA graph: the work that was queued on a stream between begin and end, to be launched again at once. Between the
 * two calls nothing may wait for the device. A graph keeps the addresses that it was captured with; capture a new one
 * when one of them changes. After a failure between begin and end, end must still be called; it then gives no graph. */
typedef struct ifs_cuda_graph ifs_cuda_graph;

ifs_status ifs_cuda_graph_begin(ifs_stream *stream);
ifs_status ifs_cuda_graph_end(ifs_stream *stream, ifs_cuda_graph **out);
ifs_status ifs_cuda_graph_launch(ifs_cuda_graph *graph, ifs_stream *stream);
void ifs_cuda_graph_destroy(ifs_cuda_graph *graph);

/*
 * ifs_memory_device_ptr and ifs_tensor_device_ptr (sections 4 and 5) with a stream: a copy that is due is queued on
 * `stream`, and the call does not wait for it. If other work on this memory is queued on another stream, `stream` waits
 * for it; the caller does not. From then on the memory belongs to `stream`: the next access, on the host or for another
 * stream, waits for the work that was queued on `stream` by then.
 *
 * So the head is true while copies run: the host side is not written while it is being copied, and not read before its
 * copy has arrived. A stream of another device is ERR_INVALID_ARGUMENT, and so is a copy that is due while its stream
 * is captured.
 */

/* Queues the copy to the host on `stream`, after the work that writes the device side. A later access on the host waits
 * for this copy alone, not for work that is queued after it. ERR_INVALID_ARGUMENT if `stream` is NULL. */
ifs_status ifs_memory_fetch(ifs_memory *memory, ifs_stream *stream);

/* The address of the device side for another library: up to date, and from now on the newer side; and a hold on its
 * block. `stream`, the library's own, waits for the work that is queued for the tensor; the host does not. The library
 * itself orders its work, and whatever follows that work. */
ifs_status ifs_tensor_lend(ifs_tensor *tensor, ifs_stream *stream, void **out, ifs_block **block);

/* 1 if a host address is in page-locked memory that is registered with CUDA, else 0. */
int32_t ifs_is_page_locked(const void *address);

/* The ordinal of the device of an address; IFS_NO_DEVICE for host memory. */
ifs_status ifs_pointer_device(const void *address, int32_t *out);

/* ---- 12. Batches ---------------------------------------------------------------------------------------------- */

/* A pool of threads that divide a batch among them. The caller is one of them, so a pool of 1 starts no thread. Several
 * threads may use one pool, one after another. Where a pool may be NULL, the caller works alone. In a child process
 * that was forked later, the pool has no threads and the caller works alone too; destroying it there frees the child's
 * copy. */

ifs_status ifs_workers_create(int32_t threads, ifs_workers **out);
void ifs_workers_destroy(ifs_workers *workers);
int32_t ifs_workers_threads(const ifs_workers *workers);

/* Preprocesses `n` images side by side to `host_ptr`, where `nbytes` bytes may be written. With `device_ptr`, the copy
 * of each output to the device is queued on `stream` as soon as the output is complete; `host_ptr` is page-locked then,
 * and must not be touched until the copies are done. */
ifs_status ifs_preprocess_batch(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries,
                                int32_t n, const ifs_pixel_transform *transform, void *host_ptr, size_t nbytes,
                                void *device_ptr, ifs_stream *stream);

/* The bytes that `n` images take on a device as ifs_upload copies them: dense, each plane aligned to 256 bytes. */
ifs_status ifs_upload_nbytes(const ifs_image *images, const ifs_geometry *geometries, int32_t n, size_t *out);

/*
 * Queues copies of `n` images to `device_ptr` on `stream`: of each image the rows that its geometry reads. These are
 * the rows that ifs_geometry_rows returns, but all rows of NV12, and pairs of rows only of dense images.
 *
 * An image in page-locked memory is copied from its own memory, and must stay there until the copy is done. All other
 * images go piece by piece through `staging`, which is page-locked and has `nbytes` bytes as `device_ptr` does. It may
 * be NULL if there are no such images.
 * `out_images` gets the images on the device, and `out_geometries` their geometries.
 */
ifs_status ifs_upload(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                      void *staging, void *device_ptr, size_t nbytes, ifs_stream *stream, ifs_image *out_images,
                      ifs_geometry *out_geometries);

/* ---- 13. Kernels ---------------------------------------------------------------------------------------------- */

/*
 * The operations of sections 7 to 10 on device memory, with the same checks and the same bits. All of them queue their
 * work on `stream`, which is not NULL and comes last, and return. They allocate nothing, wait for nothing, and decide
 * nothing by the content of device memory, so they can be captured into a CUDA graph; a graph repeats a call with the
 * images, geometries and addresses that it was captured with. The caller keeps all memory valid until the work is done.
 * It cannot be checked whether an address is on the stream's device. ERR_NO_DEVICE in a CPU-only build.
 */

/*
 * Preprocesses `n` images to one batch at `dst`, where `nbytes` bytes may be written: slice i is what ifs_preprocess
 * makes of images[i] with geometries[i]. `images` and `geometries` are host arrays; the planes of the images are on the
 * device. The images may differ in size, format and geometry, but have one canvas (ERR_SHAPE). One launch handles up to
 * 40 images, and nothing but the launch itself is copied to the device. Only aligned words of 4 bytes that hold a byte
 * of the image, or of the space between its rows, are read.
 */
ifs_status ifs_cuda_preprocess(const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                               const ifs_pixel_transform *transform, void *dst, size_t nbytes, ifs_stream *stream);

/* The parameters of a decoder, and its workspace on a device. Its runs are queued on one stream, or ordered by events.
 */
typedef struct ifs_cuda_detection_decoder ifs_cuda_detection_decoder;

/* A run writes `ifs_cuda_detections_nbytes(max_detections, 1)` bytes (a multiple of 8) for each image: this head, then
 * space for max_detections of ifs_detection, of which the first `count` are written. */
typedef struct ifs_cuda_detections {
    ifs_detect_stats stats;
    int32_t count;
    int32_t reserved; /* 0 */
} ifs_cuda_detections;

/* Allocates the workspace, `ifs_cuda_detection_decoder_nbytes` bytes of `device`, for runs of up to `max_batch` images
 * (1 to 65,535). It holds min(max_batch, 48) images; larger runs are divided. */
ifs_status ifs_cuda_detection_decoder_create(const ifs_detect_params *params, int32_t max_batch, int32_t device,
                                             ifs_cuda_detection_decoder **out);
void ifs_cuda_detection_decoder_destroy(ifs_cuda_detection_decoder *decoder); /* waits for the device */
size_t ifs_cuda_detection_decoder_nbytes(const ifs_cuda_detection_decoder *decoder);

/*
 * Decodes the outputs of `n` images, one after another at `output`, to `detections`, a block of the layout above:
 * `nbytes` bytes may be written there, and it is aligned to 8. The boxes, order and statistics of each image are those
 * of ifs_detection_decoder_run. `geometries` is a host array.
 */
ifs_status ifs_cuda_detection_decoder_run(ifs_cuda_detection_decoder *decoder, const void *output,
                                          const ifs_geometry *geometries, int32_t n, void *detections, size_t nbytes,
                                          ifs_stream *stream);

/* The bytes of the block of `n` images; 0 if an argument is not positive or the size overflows. */
size_t ifs_cuda_detections_nbytes(int32_t max_detections, int32_t n);

/*
 * The masks of the detections of `n` images, whose block `detections` a run of ifs_cuda_detection_decoder_run with the
 * parameters `detect` has written; the first num_coefficients extra numbers of an anchor are its coefficients. All
 * pointers but `geometries` are on the device: `output` as for the decoder, `prototypes` [n, num_coefficients, height,
 * width], `masks` [n, max_detections], `bits` [n, capacity] and `needed` [n].
 *
 * Each mask has the layout and the bits of ifs_masks_assemble, with offsets from the start of its image's bits. Masks
 * that do not fit the `capacity` bytes of an image have an offset of -1 and no bits; `needed` receives the bytes of all
 * masks of an image, so that nothing is dropped silently.
 */
ifs_status ifs_cuda_masks(const ifs_mask_params *params, const ifs_detect_params *detect, const void *output,
                          const void *prototypes, const ifs_geometry *geometries, int32_t n, const void *detections,
                          ifs_mask *masks, uint8_t *bits, size_t capacity, int64_t *needed, ifs_stream *stream);

/* An oriented box in pixels of the canvas, its score and class, and the index of its anchor. */
typedef struct ifs_oriented_detection {
    float x, y, width, height, angle;
    float score;
    int32_t class_id, row;
} ifs_oriented_detection;

/* The bytes of a block for `n` images: for each one an ifs_cuda_detections, then space for max_detections of
 * ifs_oriented_detection. And those of the workspace for max_candidates boxes an image. 0 if an argument is not
 * positive or the size overflows. */
size_t ifs_cuda_oriented_nbytes(int32_t max_detections, int32_t n);
size_t ifs_cuda_oriented_workspace_nbytes(int32_t max_candidates, int32_t n);

/*
 * The oriented boxes of `n` images: Fast NMS, as ifs_nms_oriented, among the candidates that a run of
 * ifs_cuda_detection_decoder_run with the parameters `detect` has written to `candidates`. That decoder has an
 * iou_threshold of 1, so that it suppresses nothing, and its max_detections are the candidates. The last extra number
 * of an anchor is the angle; a box whose angle is not finite is dropped. All pointers but `detect` are on the device.
 */
ifs_status ifs_cuda_oriented(const ifs_detect_params *detect, const void *output, int32_t n, const void *candidates,
                             float iou_threshold, int32_t max_detections, void *workspace, size_t workspace_nbytes,
                             void *detections, size_t nbytes, ifs_stream *stream);

/* The byte at which the class map of each of `n` images begins in the block of ifs_cuda_class_maps, a multiple of 256,
 * to `offsets` [n]; and the bytes of all of them. Works without a device. */
ifs_status ifs_cuda_class_maps_layout(const ifs_geometry *geometries, int32_t n, int64_t *offsets, size_t *nbytes);

/*
 * The class maps of `n` images, as ifs_class_map gives them, at the offsets of ifs_cuda_class_maps_layout in
 * `class_ids`. `scores` has one image's scores after another, and `workspace` n * width * height bytes; both are on the
 * device, as `class_ids` is.
 */
ifs_status ifs_cuda_class_maps(const ifs_class_map_params *params, const void *scores, const ifs_geometry *geometries,
                               int32_t n, uint8_t *workspace, size_t workspace_nbytes, uint8_t *class_ids,
                               size_t nbytes, ifs_stream *stream);

/* ---- 14. Calibration ------------------------------------------------------------------------------------------ */

/*
 * INT8 needs a range for each activation. The data comes in pieces, and one pass over it gives the ranges of the
 * channels and a histogram of all values, from which thresholds are computed. No structure grows with the amount of
 * data. All variants give the same numbers.
 */

/* The running range of a channel. It starts as all zeros. */
typedef struct ifs_range {
    float min, max; /* of the finite values; 0 before the first one */
    int64_t count; /* values so far */
    int64_t nonfinite; /* of those, NaN or infinite */
    int64_t zeros; /* of those, 0 */
    double sum; /* of the finite values */
} ifs_range;

/* Adds values of shape [outer, channels, inner] to the ranges of `channels` channels. */
ifs_status ifs_ranges_update(const float *x, int64_t outer, int64_t channels, int64_t inner, ifs_range *ranges);

/*
 * Adds each value to bin num_bins / 2 + floor(x * (num_bins / 2 / limit)), in float32; values beyond -limit and limit
 * go into the first and the last bin. With powers of two for num_bins and limit nothing is rounded, and adding
 * neighbouring bins in pairs gives the histogram up to twice the limit. NaN and infinities are left out and counted in
 * `*nonfinite`, which may be NULL. ERR_INVALID_ARGUMENT: `limit` is not finite, not above 0, or so small that the
 * factor is infinite; num_bins is odd, or not 2 to 65536.
 */
ifs_status ifs_histogram_add(const float *x, int64_t count, float limit, int64_t *bins, int32_t num_bins,
                             int64_t *nonfinite);

/*
 * The candidate i from `levels` to num_bins - 1 with the least KL(P || Q), of equal ones the first, among those whose
 * first i bins have at least two that are not 0. P is the first i bins, with everything beyond added to the last of
 * them. Q is the first i bins without that addition, merged into `levels` levels (bin k into level floor(k * levels /
 * i)) and divided equally among the bins where P is not 0. Both are normalised (S. Migacz, "8-bit Inference with
 * TensorRT", 2017). If Q were made of P itself, i = levels would always win with Q = P. The divergence is infinite
 * where Q is 0 and P is not. If it is infinite for all candidates, or there is none, `best` is num_bins: nothing is cut
 * off. The threshold is best + 0.5 times the width of a bin.
 *
 * Zeros lose nothing under any scale, and after a ReLU they outnumber everything else. Remove them from bin 0 first
 * (ifs_range counts them).
 *
 * `plain` asks for the slow reference, which gives the same `best`. `divergence` may be NULL. ERR_INVALID_ARGUMENT: all
 * bins are 0, one is negative, or their sum is above 2^52; `levels` is not 1 to num_bins - 1; num_bins is not 2 to
 * 65536; `bins` or `best` is NULL.
 */
ifs_status ifs_entropy_threshold(const int64_t *bins, int32_t num_bins, int32_t levels, int32_t plain, int32_t *best,
                                 double *divergence);

/* ---- 15. Other processes -------------------------------------------------------------------------------------- */

/* Device memory of another process, by the bytes of its cudaIpcMemHandle_t. `nbytes` is how much of its allocation lies
 * behind the address that is returned. Each address is closed once. */
#define IFS_CUDA_IPC_NBYTES 64
ifs_status ifs_cuda_ipc_open(int32_t device, const uint8_t *handle, void **address, size_t *nbytes);
ifs_status ifs_cuda_ipc_close(int32_t device, void *address);

/* The handle of device memory of this process, by which another one opens it. */
ifs_status ifs_cuda_ipc_export(int32_t device, void *address, uint8_t *handle);

/* ---- 16. Tracking --------------------------------------------------------------------------------------------- */

/*
 * Assigns min(rows, columns) pairs of a row and a column, each at most once, with the minimum sum of costs. `costs` is
 * [rows, columns] and finite. `column_of` is [rows]: the column of each row, or -1. Shortest augmenting paths (D. F.
 * Crouse, 2016); O(min^2 max). Sums that are equal up to rounding give any of their assignments.
 */
ifs_status ifs_assign(const float *costs, int64_t rows, int64_t columns, int32_t *column_of);

/*
 * ByteTrack (Y. Zhang et al., "ByteTrack: Multi-Object Tracking by Associating Every Detection Box", ECCV 2022). A
 * track has a Kalman filter with constant velocity for each of the four edges, in float64. A frame is associated in
 * two rounds, each a linear assignment with the maximum sum of IoU: boxes with a high score to all tracks, then the
 * other boxes to the tracks that are left. Classes play no part. A box with a high score that is left begins a track,
 * which gets its number when it has been found in `min_consecutive` frames in a row, at the earliest in its second one.
 */
typedef struct ifs_tracker_params {
    float high_score; /* boxes with at least this score take part in the first round */
    float iou_threshold; /* the minimum IoU of a box and its track, above 0 */
    double start_score; /* the minimum score of the first box of a track */
    int32_t min_consecutive; /* frames, the first one included; at least 1 */
    int32_t max_lost; /* frames without a box after which a track with a number ends; 0 or more */
} ifs_tracker_params;

#define IFS_NO_TRACK (-1)

/* The tracks of one stream. */
typedef struct ifs_tracker ifs_tracker;

ifs_status ifs_tracker_create(const ifs_tracker_params *params, ifs_tracker **out);
void ifs_tracker_destroy(ifs_tracker *tracker);

/*
 * The track numbers of the `count` boxes of the next frame, to `track_ids` [count]; IFS_NO_TRACK for a box without a
 * track, or whose track has no number yet. Numbers begin at 0 and are not used again before a reset. Memory grows
 * with the largest number so far of boxes, and of tracks with the lost ones; other frames allocate nothing.
 * ERR_INVALID_ARGUMENT for an edge that is not finite or a score that is NaN, and ERR_IN_USE while another thread
 * updates or resets the tracker; its tracks stay as they were.
 */
ifs_status ifs_tracker_update(ifs_tracker *tracker, const ifs_detection *boxes, int64_t count, int64_t *track_ids);

/* Forgets all tracks: numbers begin at 0 again. ERR_IN_USE as above. */
ifs_status ifs_tracker_reset(ifs_tracker *tracker);

/* [/cdef] */

#ifdef __cplusplus
}
#endif
#endif /* INFERSDK_H */
