/* rounds.h - tests of random rounds, always the same ones: a check that tells the round, and the numbers. */
#ifndef ROUNDS_H
#define ROUNDS_H

#include "infersdk.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: round %lu, last error: %s\n", __FILE__, __LINE__, #condition, round_number,    \
                    ifs_last_error());                                                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static unsigned long round_number;
static uint64_t state = 0x9E3779B97F4A7C15u;

/* xorshift64*: G. Marsaglia, "Xorshift RNGs", 2003; S. Vigna, 2016. */
static inline uint64_t next(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
}

static inline uint32_t below(uint32_t n) { return (uint32_t)(next() >> 32) % n; }

#endif
