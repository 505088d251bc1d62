/*
 * internal.h - what all files of the core share: errors, SIMD targets, float16, checked products.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_INTERNAL_H
#define IFS_INTERNAL_H

#include "infersdk.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Inlined into each caller, whose constant arguments choose the code. */
#define IFS__INLINE static inline __attribute__((always_inline))

/* ---- errors ---- */

#if defined(__GNUC__)
#define IFS__PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define IFS__PRINTF(fmt, args)
#endif

/* Sets this thread's error text and returns `status`: `return ifs__fail(IFS_ERR_SHAPE, "...", ...)`. */
ifs_status ifs__fail(ifs_status status, const char *format, ...) IFS__PRINTF(2, 3);

#define IFS__TRY(call)                                                                                                 \
    do {                                                                                                               \
        ifs_status ifs__status = (call);                                                                               \
        if (ifs__status != IFS_OK)                                                                                     \
            return ifs__status;                                                                                        \
    } while (0)

/* ---- float16, the plain reference ---- */

uint16_t ifs__float_to_half(float value);
float ifs__half_to_float(uint16_t half);

/* Arrays, by the best variant. */
void ifs__floats_to_halves(const float *src, uint16_t *dst, size_t count);
void ifs__halves_to_floats(const uint16_t *src, float *dst, size_t count);

/* Element i of an array of float32 or float16, and its address. */
static inline float ifs__element(const void *array, int32_t dtype, size_t i) {
    return dtype == IFS_FLOAT16 ? ifs__half_to_float(((const uint16_t *)array)[i]) : ((const float *)array)[i];
}

static inline const void *ifs__element_at(const void *array, int32_t dtype, size_t i) {
    return (const char *)array + i * (dtype == IFS_FLOAT16 ? sizeof(uint16_t) : sizeof(float));
}

/* ---- sizes: products that may overflow ---- */

static inline bool ifs__mul_overflows(size_t a, size_t b, size_t *out) {
    if (a != 0 && b > SIZE_MAX / a)
        return true;
    *out = a * b;
    return false;
}

#ifdef __cplusplus
}
#endif
#endif
