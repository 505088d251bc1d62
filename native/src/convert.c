/*
 * convert.c - element types: their sizes and names, float16, and conversion between any two.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "fmath.h"
#include "simd.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[IFS_NUM_DTYPES] = {
    [IFS_FLOAT32] = {"float32", 4}, [IFS_FLOAT16] = {"float16", 2}, [IFS_INT32] = {"int32", 4},
    [IFS_UINT8] = {"uint8", 1},     [IFS_INT8] = {"int8", 1},       [IFS_INT64] = {"int64", 8},
    [IFS_BOOL] = {"bool", 1},       [IFS_FLOAT64] = {"float64", 8}, [IFS_INT16] = {"int16", 2},
    [IFS_UINT16] = {"uint16", 2},   [IFS_UINT32] = {"uint32", 4},   [IFS_UINT64] = {"uint64", 8},
};

static bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < IFS_NUM_DTYPES; }

size_t ifs_dtype_size(int32_t dtype) { return is_dtype(dtype) ? dtypes[dtype].size : 0; }
const char *ifs_dtype_name(int32_t dtype) { return is_dtype(dtype) ? dtypes[dtype].name : NULL; }

/* ---- float16 ---- */

/* Drops the last `shift` bits of `magnitude` (the bits of a float without its sign): to the nearest, ties to even. */
static uint32_t round_shift(uint32_t magnitude, uint32_t shift) {
    uint32_t half = 1u << (shift - 1), odd = magnitude >> shift & 1;
    return (magnitude + half - 1 + odd) >> shift;
}

uint16_t ifs__float_to_half(float value) {
    uint32_t bits = ifs__bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) /* NaN: quiet, with the upper bits of its payload, as the hardware does */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) /* 65536 and up */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000) /* normal: rebias the exponent by 112; the carry of rounding may reach infinity */
        return (uint16_t)(sign | round_shift(magnitude - (112u << 23), 13));
    if (magnitude < 0x33000000) /* below half of the least subnormal */
        return (uint16_t)sign;
    uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | round_shift(mantissa, 126 - (magnitude >> 23)));
}

float ifs__half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31)
        return ifs__float_of_bits(sign | 0x7f800000 | (mantissa ? 0x400000 | mantissa << 13 : 0));
    if (exponent)
        return ifs__float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = (float)mantissa * 0x1p-24f; /* subnormal: exact */
    return ifs__float_of_bits(sign | ifs__bits_of_float(magnitude));
}

#if IFS__AVX2
/* These convert whole vectors, and return the number of elements in them. */
IFS__TARGET_AVX2 static size_t floats_to_halves_avx2(const float *src, uint16_t *dst, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

IFS__TARGET_AVX2 static size_t halves_to_floats_avx2(const uint16_t *src, float *dst, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
    return i;
}
#endif

void ifs__floats_to_halves(const float *src, uint16_t *dst, size_t count) {
    size_t i = 0;
#if IFS__AVX2
    if (ifs_simd() != IFS_SIMD_PLAIN)
        i = floats_to_halves_avx2(src, dst, count);
#endif
    for (; i < count; i++)
        dst[i] = ifs__float_to_half(src[i]);
}

void ifs__halves_to_floats(const uint16_t *src, float *dst, size_t count) {
    size_t i = 0;
#if IFS__AVX2
    if (ifs_simd() != IFS_SIMD_PLAIN)
        i = halves_to_floats_avx2(src, dst, count);
#endif
    for (; i < count; i++)
        dst[i] = ifs__half_to_float(src[i]);
}

/*
 * ---- any type to any other ----
 *
 * There are two steps, over a buffer that stays in the first cache: widen to the type that holds each value of the
 * source exactly (int64, uint64 or double), then narrow with saturation. That takes 12 readers and 3 x 12 writers
 * instead of 144 loops.
 */

#define CHUNK 512

typedef union wide {
    int64_t i[CHUNK];
    uint64_t u[CHUNK];
    double d[CHUNK];
} wide;

typedef enum wide_kind { SIGNED, UNSIGNED, REAL } wide_kind;

static wide_kind widen(const void *src, int32_t dtype, wide *out, size_t n) {
#define WIDEN(CODE, TYPE, FIELD, KIND)                                                                                 \
    case CODE:                                                                                                         \
        for (size_t k = 0; k < n; k++) {                                                                               \
            TYPE value;                                                                                                \
            memcpy(&value, (const char *)src + k * sizeof value, sizeof value);                                        \
            out->FIELD[k] = value;                                                                                     \
        }                                                                                                              \
        return KIND;
    switch (dtype) {
        WIDEN(IFS_FLOAT32, float, d, REAL)
        WIDEN(IFS_FLOAT64, double, d, REAL)
        WIDEN(IFS_INT8, int8_t, i, SIGNED)
        WIDEN(IFS_INT16, int16_t, i, SIGNED)
        WIDEN(IFS_INT32, int32_t, i, SIGNED)
        WIDEN(IFS_INT64, int64_t, i, SIGNED)
        WIDEN(IFS_UINT8, uint8_t, i, SIGNED)
        WIDEN(IFS_UINT16, uint16_t, i, SIGNED)
        WIDEN(IFS_UINT32, uint32_t, i, SIGNED)
        WIDEN(IFS_UINT64, uint64_t, u, UNSIGNED)
    case IFS_BOOL:
        for (size_t k = 0; k < n; k++)
            out->i[k] = ((const uint8_t *)src)[k] != 0;
        return SIGNED;
    default: /* IFS_FLOAT16 */
        for (size_t k = 0; k < n; k++)
            out->d[k] = ifs__half_to_float(((const uint16_t *)src)[k]);
        return REAL;
    }
#undef WIDEN
}

/* Limits `value` to [low, high]. */
static int64_t clamp_signed(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static int64_t clamp_real(double value, int64_t low, int64_t high) {
    if (isnan(value))
        return 0;
    /* (double)INT64_MAX is 2^63: at or above it is above the range, so >= is right there and harmless elsewhere. */
    return value <= (double)low ? low : value >= (double)high ? high : (int64_t)value;
}

static uint64_t clamp_real_unsigned(double value) {
    return !(value > 0) ? 0 : value >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)value;
}

/* The double nearest to a float16, halfway cases to even, in one rounding: to float first would round twice. */
static uint16_t double_to_half(double value) {
    float single = (float)value;
    if (isfinite(single) && (double)single != value) {
        /* Round to odd: with the sticky bit in the float's last place, the second rounding is right. */
        uint32_t bits = ifs__bits_of_float(single);
        bool away = fabs((double)single) > fabs(value);
        if (away)
            bits -= 1;
        single = ifs__float_of_bits(bits | 1);
    }
    return ifs__float_to_half(single);
}

static void narrow(const wide *in, wide_kind kind, void *dst, int32_t dtype, size_t n) {
#define STORE(TYPE, VALUE)                                                                                             \
    for (size_t k = 0; k < n; k++) {                                                                                   \
        TYPE value = (TYPE)(VALUE);                                                                                    \
        memcpy((char *)dst + k * sizeof value, &value, sizeof value);                                                  \
    }
#define NARROW(CODE, TYPE, OF_SIGNED, OF_UNSIGNED, OF_REAL)                                                            \
    case CODE:                                                                                                         \
        if (kind == SIGNED)                                                                                            \
            STORE(TYPE, OF_SIGNED)                                                                                     \
        else if (kind == UNSIGNED)                                                                                     \
            STORE(TYPE, OF_UNSIGNED)                                                                                   \
        else                                                                                                           \
            STORE(TYPE, OF_REAL)                                                                                       \
        break;
#define NARROW_INTEGER(CODE, TYPE, LOW, HIGH)                                                                          \
    NARROW(CODE, TYPE, clamp_signed(in->i[k], LOW, HIGH), in->u[k] > (uint64_t)(HIGH) ? (HIGH) : (int64_t)in->u[k],    \
           clamp_real(in->d[k], LOW, HIGH))
    switch (dtype) {
        NARROW_INTEGER(IFS_INT8, int8_t, INT8_MIN, INT8_MAX)
        NARROW_INTEGER(IFS_INT16, int16_t, INT16_MIN, INT16_MAX)
        NARROW_INTEGER(IFS_INT32, int32_t, INT32_MIN, INT32_MAX)
        NARROW_INTEGER(IFS_INT64, int64_t, INT64_MIN, INT64_MAX)
        NARROW_INTEGER(IFS_UINT8, uint8_t, 0, UINT8_MAX)
        NARROW_INTEGER(IFS_UINT16, uint16_t, 0, UINT16_MAX)
        NARROW_INTEGER(IFS_UINT32, uint32_t, 0, UINT32_MAX)
        NARROW(IFS_UINT64, uint64_t, in->i[k] < 0 ? 0 : in->i[k], in->u[k], clamp_real_unsigned(in->d[k]))
        NARROW(IFS_BOOL, uint8_t, in->i[k] != 0, in->u[k] != 0, in->d[k] != 0)
        NARROW(IFS_FLOAT32, float, in->i[k], in->u[k], in->d[k])
        NARROW(IFS_FLOAT64, double, in->i[k], in->u[k], in->d[k])
        /* An integer beyond 2^53 is far beyond the range of float16 anyway. */
        NARROW(IFS_FLOAT16, uint16_t, double_to_half((double)in->i[k]), double_to_half((double)in->u[k]),
               double_to_half(in->d[k]))
    }
#undef NARROW_INTEGER
#undef NARROW
#undef STORE
}

ifs_status ifs_convert(const void *src, int32_t src_dtype, void *dst, int32_t dst_dtype, size_t count) {
    size_t src_size = ifs_dtype_size(src_dtype), dst_size = ifs_dtype_size(dst_dtype);
    if (!src_size || !dst_size)
        return ifs__fail(IFS_ERR_DTYPE, "cannot convert element type %d to %d; the known types are 0 to %d",
                         (int)src_dtype, (int)dst_dtype, IFS_NUM_DTYPES - 1);
    if (count && (!src || !dst))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "cannot convert %zu elements from or to NULL", count);
    if (src_dtype == dst_dtype) {
        if (count)
            memmove(dst, src, count * src_size);
    } else if (src_dtype == IFS_FLOAT32 && dst_dtype == IFS_FLOAT16) {
        ifs__floats_to_halves(src, dst, count);
    } else if (src_dtype == IFS_FLOAT16 && dst_dtype == IFS_FLOAT32) {
        ifs__halves_to_floats(src, dst, count);
    } else if (src_dtype == IFS_UINT8 && dst_dtype == IFS_FLOAT32) {
        for (size_t i = 0; i < count; i++)
            ((float *)dst)[i] = ((const uint8_t *)src)[i];
    } else {
        wide buffer;
        for (size_t done = 0; done < count; done += CHUNK) {
            size_t n = count - done < CHUNK ? count - done : CHUNK;
            wide_kind kind = widen((const char *)src + done * src_size, src_dtype, &buffer, n);
            narrow(&buffer, kind, (char *)dst + done * dst_size, dst_dtype, n);
        }
    }
    return IFS_OK;
}
