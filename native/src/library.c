/* library.c - version, build, and the choice of the SIMD variant. SPDX-License-Identifier: Apache-2.0 */
#include "simd.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if IFS__AVX512
#include <cpuid.h>
#endif

#ifndef IFS_VERSION
#error "the build passes the version in IFS_VERSION"
#endif

const char *ifs_version(void) { return IFS_VERSION; }

static const char *const simd_names[] = {"plain", "neon", "avx2", "avx512"};
#define NUM_SIMD ((int32_t)(sizeof simd_names / sizeof *simd_names))

const char *ifs_simd_name(int32_t simd) { return simd >= 0 && simd < NUM_SIMD ? simd_names[simd] : NULL; }

#if IFS__AVX512
/* __builtin_cpu_supports() answers no for everything in a program that zig's compiler links. */
static int32_t best_of_x86(void) {
    enum { FMA_POPCNT_OSXSAVE_AVX_F16C = 1 << 12 | 1 << 23 | 1 << 27 | 1 << 28 | 1 << 29, AVX2_BMI2 = 1 << 5 | 1 << 8 };
    const uint32_t avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, avx512_vbmi = 1u << 1;
    uint32_t eax, ebx, ecx, edx, saved; /* the registers that the system saves */
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || ~ecx & FMA_POPCNT_OSXSAVE_AVX_F16C)
        return IFS_SIMD_PLAIN;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
    if (~saved & 0x6 || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || ~ebx & AVX2_BMI2)
        return IFS_SIMD_PLAIN;
    return ~saved & 0xe6 || ~ebx & avx512_f_dq_bw_vl || ~ecx & avx512_vbmi ? IFS_SIMD_AVX2 : IFS_SIMD_AVX512;
}
#endif

int32_t ifs_simd_best(void) {
#if IFS__AVX512
    return best_of_x86();
#elif IFS__NEON
    return IFS_SIMD_NEON;
#else
    return IFS_SIMD_PLAIN;
#endif
}

/* Whether this build and processor can run `simd`. */
static bool can_run(int32_t simd) {
    int32_t best = ifs_simd_best();
    if (simd == IFS_SIMD_PLAIN || simd == best)
        return true;
    return best == IFS_SIMD_AVX512 && simd == IFS_SIMD_AVX2;
}

static _Atomic int32_t current_simd = -1;

int32_t ifs_simd(void) {
    int32_t simd = atomic_load_explicit(&current_simd, memory_order_relaxed);
    if (simd >= 0)
        return simd;
    simd = ifs_simd_best();
    const char *wanted = getenv("INFERSDK_SIMD");
    for (int32_t i = 0; wanted && i < NUM_SIMD; i++)
        if (strcmp(wanted, simd_names[i]) == 0 && can_run(i))
            simd = i;
    atomic_store_explicit(&current_simd, simd, memory_order_relaxed);
    return simd;
}

ifs_status ifs_set_simd(int32_t simd) {
    if (!ifs_simd_name(simd))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "unknown SIMD variant %d; use IFS_SIMD_PLAIN (%d) to %d", (int)simd,
                         IFS_SIMD_PLAIN, (int)NUM_SIMD - 1);
    if (!can_run(simd))
        return ifs__fail(IFS_ERR_UNSUPPORTED, "SIMD variant %s cannot run on this processor; the best one is %s",
                         ifs_simd_name(simd), ifs_simd_name(ifs_simd_best()));
    atomic_store_explicit(&current_simd, simd, memory_order_relaxed);
    return IFS_OK;
}
