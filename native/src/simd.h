/*
 * simd.h - the SIMD variants: which ones a build has, their intrinsics, and the choice of one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A variant is a function with a target attribute. NEON runs the AVX2 sources: SIMDe translates each intrinsic.
 */
#ifndef IFS_SIMD_H
#define IFS_SIMD_H

#include "internal.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define IFS__AVX2 1
#define IFS__AVX512 1
#define IFS__ANY(mask) (_mm256_movemask_ps(mask) != 0)
#define IFS__TARGET_AVX2 __attribute__((target("avx2,f16c,fma,bmi2")))
#define IFS__TARGET_AVX512                                                                                             \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,f16c,fma,bmi2,popcnt")))
#elif defined(__aarch64__)
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#define IFS__AVX2 1
#define IFS__NEON 1
/* Whether a lane of a comparison is true: NEON has no movemask, and SIMDe takes many instructions for one. */
#define IFS__ANY(mask)                                                                                                 \
    (vmaxvq_u32(vreinterpretq_u32_f32(_mm_or_ps(_mm256_castps256_ps128(mask), _mm256_extractf128_ps(mask, 1)))) != 0)
#define IFS__TARGET_AVX2
/* float16, which SIMDe converts one element at a time. */
#define _mm_cvtph_ps(halves) vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_s64(halves)))
#define _mm256_cvtph_ps(halves) _mm256_set_m128(vcvt_high_f32_f16(vreinterpretq_f16_s64(halves)), _mm_cvtph_ps(halves))
#define _mm256_cvtps_ph(floats, rounding)                                                                              \
    vreinterpretq_s64_f16(                                                                                             \
        vcvt_high_f16_f32(vcvt_f16_f32(_mm256_castps256_ps128(floats)), _mm256_extractf128_ps(floats, 1)))
#endif

/* The variant of `name` in use: NAME_plain, NAME_avx2 or NAME_avx512. */
#if IFS__AVX512
#define IFS__VARIANT(name)                                                                                             \
    (ifs_simd() == IFS_SIMD_AVX512 ? name##_avx512 : ifs_simd() == IFS_SIMD_AVX2 ? name##_avx2 : name##_plain)
#elif IFS__NEON
#define IFS__VARIANT(name) (ifs_simd() == IFS_SIMD_NEON ? name##_avx2 : name##_plain)
#else
#define IFS__VARIANT(name) (name##_plain)
#endif

/* The same for passes without an AVX-512 variant. */
#if IFS__AVX2
#define IFS__VARIANT_AVX2(name) (ifs_simd() == IFS_SIMD_PLAIN ? name##_plain : name##_avx2)
#else
#define IFS__VARIANT_AVX2(name) (name##_plain)
#endif

#endif
