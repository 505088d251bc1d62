/*
 * dlpack.h - the structs of DLPack's unversioned exchange, as its specification defines them
 * (https://dmlc.github.io/dlpack/latest/c_api.html). Python reads and fills them; the core itself does not use them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DLPACK_H
#define IFS_DLPACK_H

#include <stdint.h>

/* [cdef] */
typedef struct {
    int32_t device_type; /* 1 CPU, 2 CUDA, 3 page-locked host memory */
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code; /* 0 signed, 1 unsigned, 2 floating point, 6 bool */
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL is dense, C order */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
/* [/cdef] */

#endif
