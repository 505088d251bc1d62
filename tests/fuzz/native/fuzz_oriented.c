/*
 * fuzz_oriented.c - NMS of oriented boxes out of any numbers.
 *
 * What is kept is what the definition keeps: a box goes if a better one of its class overlaps it by more than the
 * threshold, dropped or not. Each SIMD variant gives the bits of the plain one.
 */
#include "fuzz.h"
#include "oriented_math.h"

#include <math.h>

#define MOST 96

/* A number of a box: mostly of an image, now and then none at all. */
static float side(int wild) { return wild && !below(24) ? odd_float() : (float)below(1 << 12) / 16; }

static void one_case(void) {
    static const float angles[] = {0.0f, 0.78539816f, 1.57079633f, 3.14159265f, -0.5f, 100.0f};
    int64_t n = below(16) ? (int64_t)below(MOST) : -(int64_t)below(3), kept = -7, number = -7, expected = 0;
    size_t capacity = n > 0 ? (size_t)n : 0;
    int wild = !below(6), grouped = coin(), finite = 1;
    float threshold = below(16) ? (float)below(65) / 64 : odd_float();
    float *boxes = exact(20 * capacity), *scores = exact(4 * capacity);
    int32_t *classes = exact(4 * capacity);
    int64_t *keep = exact(8 * capacity), *other = exact(8 * capacity), order[MOST];
    for (size_t i = 0; i < capacity; i++) {
        float *b = boxes + 5 * i;
        if (i && below(3) == 0) /* near another one, so that they overlap */
            memcpy(b, boxes + 5 * below((uint32_t)i), 20), b[below(4)] += (float)below(64) / 32;
        else {
            for (int k = 0; k < 4; k++)
                b[k] = side(wild);
            b[4] = below(4) ? (float)below(1 << 12) / 1024 - 2 : angles[below(sizeof angles / sizeof *angles)];
            if (wild && !below(24))
                b[4] = odd_float();
        }
        scores[i] = wild && !below(24) ? odd_float() : (float)below(16) - 4;
        classes[i] = below(32) ? (int32_t)below(3) : odd_number(9);
        for (int k = 0; k < 5; k++)
            finite = finite && isfinite(b[k]);
        finite = finite && isfinite(scores[i]);
        order[i] = (int64_t)i;
    }
    const int32_t *ids = grouped ? classes : NULL;
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    ifs_status status = counted(ifs_nms_oriented(boxes, scores, ids, n, threshold, keep, &kept));
    CHECK((status == IFS_OK) == (n >= 0 && finite && threshold >= 0 && threshold <= 1));
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++)
        if (ifs_set_simd(simd) == IFS_OK) {
            CHECK(ifs_nms_oriented(boxes, scores, ids, n, threshold, other, &number) == status);
            CHECK(number == kept && (status != IFS_OK || memcmp(keep, other, 8 * (size_t)kept) == 0));
        }
    if (status == IFS_OK) {
        digest("nms oriented", keep, 8 * (size_t)kept);
        for (size_t i = 1; i < capacity; i++) /* best first, equal ones by index */
            for (size_t k = i; k > 0 && scores[order[k]] > scores[order[k - 1]]; k--) {
                int64_t swap = order[k];
                order[k] = order[k - 1], order[k - 1] = swap;
            }
        const ifs__oriented_limit limit = ifs__oriented_limit_of(threshold);
        for (size_t i = 0; i < capacity; i++) {
            const float *b = boxes + 5 * order[i];
            const ifs__oriented box = ifs__oriented_of(b[0], b[1], b[2], b[3], b[4]);
            int dropped = 0;
            for (size_t k = 0; k < i && !dropped; k++) {
                const float *a = boxes + 5 * order[k];
                dropped = (!grouped || classes[order[k]] == classes[order[i]]) &&
                          ifs__oriented_overlap(ifs__oriented_of(a[0], a[1], a[2], a[3], a[4]), box, limit);
            }
            if (!dropped)
                CHECK(expected < kept && keep[expected++] == order[i]);
        }
        CHECK(kept == expected);
    } else
        CHECK(kept == -7);
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    free(boxes), free(scores), free(classes), free(keep), free(other);
}
