/*
 * test_pixel_math.c - the arithmetic of preprocessing against its definition, over all values where that is possible.
 *
 * The definitions are written here a second time, in the plainest form: with libm's functions, in float64, with limits.
 */
#include "pixel_math.h"
#include "rounds.h"

#include <stdio.h>

/* OpenCV's tap of one side, as its source has it. */
static void expect_tap(int32_t d, int32_t source, int32_t resized, bool edge) {
    const ifs__tap tap = ifs__resize_tap(d, ifs__resize_scale(source, resized), source, edge);
    float f = (float)((d + 0.5) * (1.0 / ((double)resized / source)) - 0.5);
    int32_t index = (int32_t)floorf(f);
    f -= (float)index;
    if (edge && index < 0)
        index = 0, f = 0;
    if (edge && index >= source - 1)
        index = source - 1, f = 0;
    CHECK(tap.index == index);
    CHECK((tap.weights & 0xffff) == (uint32_t)lrintf((1.0f - f) * 2048));
    CHECK(tap.weights >> 16 == (uint32_t)lrintf(f * 2048));
    CHECK((tap.weights & 0xffff) + (tap.weights >> 16) <= 2049);
}

static void test_taps(void) {
    const int32_t sides[] = {1, 2, 3, 7, 16, 31, 360, 480, 639, 640, 641, 1080, 1920, 4095, 1 << 20};
    const size_t n = sizeof sides / sizeof *sides;
    for (size_t s = 0; s < n; s++)
        for (size_t r = 0; r < n; r++)
            for (int32_t i = 0; i < 2000; i++) {
                const int32_t d = i < sides[r] ? i : sides[r] - 1 - (int32_t)below((uint32_t)sides[r]);
                expect_tap(d, sides[s], sides[r], false);
                expect_tap(d, sides[s], sides[r], true);
            }
}

/* No blend needs a limit: the largest weights, and all rows that two white pixels can give. */
static void test_blends(void) {
    for (uint32_t first = 0; first <= 2048; first++)
        for (uint32_t second = 2048 - first; second <= 2049 - first && second <= 2048; second++) {
            const uint32_t weights = first | second << 16;
            const uint32_t row = ifs__pixel_sum(255, 255, weights) >> 4;
            CHECK(row <= 32655 && row == 255 * (first + second) >> 4);
            CHECK(ifs__pixel_pair_sum(0xffff, weights) == 255 * (first + second));
            for (uint32_t high = 0; high <= 2048; high++) {
                const uint32_t other = high ? 2049 - high : 2048;
                CHECK(ifs__pixel_blend(row, row, high << 16, other << 16) <= 255);
            }
        }
    for (int i = 0; i < 1000000; i++) {
        const uint32_t row0 = below(32656), row1 = below(32656), b0 = below(2049), b1 = 2048 - b0;
        const uint32_t plain = (uint32_t)((((int32_t)(b0 * row0) >> 16) + ((int32_t)(b1 * row1) >> 16) + 2) >> 2);
        CHECK(ifs__pixel_blend(row0, row1, b0 << 16, b1 << 16) == plain);
    }
}

static void test_warps(void) {
    const double m[6] = {1.25, -0.5, 7.75, 0.125, 2.0, -3.5};
    const ifs__warp warp = ifs__warp_of(m);
    for (int i = 0; i < 100000; i++) {
        const int32_t x = (int32_t)below(1 << 20), y = (int32_t)below(1 << 20);
        const double sx = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2] - 0.5;
        const double sy = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5] - 0.5;
        CHECK(ifs__warp_round(ifs__warp_at(&warp, 0, x, y)) == (int64_t)floor(sx * 2048 + 0.5)); /* exact in float64 */
        CHECK(ifs__warp_round(ifs__warp_at(&warp, 1, x, y)) == (int64_t)floor(sy * 2048 + 0.5));
    }
    for (uint32_t f = 0; f < 2048; f++)
        CHECK(ifs__pixel_warp(ifs__pixel_warp_row(255, 255, f), ifs__pixel_warp_row(255, 255, f), f) == 255);
}

static void test_outputs(void) {
    CHECK(ifs__pixel_byte(-0.5f) == 0 && ifs__pixel_byte(0.5f) == 0 && ifs__pixel_byte(1.5f) == 2);
    CHECK(ifs__pixel_byte(2.5f) == 2 && ifs__pixel_byte(254.5f) == 254 && ifs__pixel_byte(1e9f) == 255);
    for (uint32_t value = 0; value < 256; value++) {
        const volatile float scaled = (float)value * 0.017124753f; /* volatile: rounded to float32, not fused */
        CHECK(ifs__pixel_scale(value, 0.017124753f, -2.117904f) == scaled + -2.117904f);
    }
}

int main(void) {
    test_taps();
    test_blends();
    test_warps();
    test_outputs();
    printf("good\n");
    return 0;
}
