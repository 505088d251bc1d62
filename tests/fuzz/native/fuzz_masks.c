/*
 * fuzz_masks.c - masks out of any prototypes, coefficients, boxes and geometries.
 *
 * Each SIMD variant gives the bits of the plain one, and its run lengths add up to the image. Nothing is read or
 * written beyond the blocks, which the address sanitizer watches.
 */
#include "fuzz.h"

#define MOST 6

static ifs_geometry some_geometry(int32_t cw, int32_t ch) {
    ifs_geometry g;
    const int32_t sw = 1 + (int32_t)below(90), sh = 1 + (int32_t)below(90);
    const double turned = below(8) ? 0 : 0.25, step = 0.5 + (double)below(9) / 8;
    const double m[6] = {step, turned, (double)below(9) - 4, -turned, step, 3};
    switch (below(4)) {
    case 0:
        CHECK(ifs_geometry_stretch(sw, sh, cw, ch, &g) == IFS_OK);
        break;
    case 1:
        CHECK(ifs_geometry_affine(sw, sh, cw, ch, m, &g) == IFS_OK);
        break;
    default:
        CHECK(ifs_geometry_letterbox(sw, sh, cw, ch, coin(), &g) == IFS_OK);
    }
    return g;
}

static void one_case(void) {
    const int32_t cw = 1 + (int32_t)below(64), ch = 1 + (int32_t)below(64), n = (int32_t)below(MOST + 1);
    ifs_geometry g = some_geometry(cw, ch);
    ifs_mask_params p = {.dtype = coin() ? IFS_FLOAT32 : IFS_FLOAT16, .threshold = (float)below(64) / 64};
    p.num_coefficients = 1 + (int32_t)below(8), p.width = 1 + (int32_t)below((uint32_t)cw);
    p.height = 1 + (int32_t)below((uint32_t)ch);
    if (!below(12)) {
        int32_t *numbers[] = {&p.dtype, &p.num_coefficients, &p.width, &p.height, &g.kind, &g.source_width};
        *numbers[below(sizeof numbers / sizeof *numbers)] = odd_number(8);
    }
    ifs_detection detections[MOST] = {{0}};
    for (int32_t i = 0; i < n; i++) {
        detections[i].x1 = below(16) ? (float)below(400) / 4 : odd_float();
        detections[i].y1 = below(16) ? (float)below(400) / 4 : odd_float();
        detections[i].x2 = below(16) ? detections[i].x1 + (float)below(400) / 4 : odd_float();
        detections[i].y2 = below(16) ? detections[i].y1 + (float)below(400) / 4 : odd_float();
    }
    ifs_mask masks[MOST] = {{0}};
    size_t nbytes = 0;
    if (counted(ifs_masks_layout(&p, &g, detections, n, masks, &nbytes)) != IFS_OK || g.source_width > 90)
        return; /* refused, or spoiled to an image with more runs than are worth counting */
    const size_t values = (size_t)p.num_coefficients * (size_t)p.width * (size_t)p.height,
                 size = p.dtype == IFS_FLOAT32 ? 4 : 2;
    uint8_t *prototypes = exact(values * size), *plain = exact(nbytes), *other = exact(nbytes);
    float *coefficients = exact(4 * (size_t)n * (size_t)p.num_coefficients);
    const int wild = !below(4);
    for (size_t i = 0; i < values; i++) {
        const float x = wild && !below(64) ? odd_float() : (float)below(256) / 64 - 2;
        const uint16_t half = (uint16_t)(wild && !below(64) ? next() : 0x3000 + below(0x1000));
        memcpy(prototypes + i * size, size == 4 ? (const void *)&x : &half, size);
    }
    for (size_t i = 0; i < (size_t)n * (size_t)p.num_coefficients; i++)
        coefficients[i] = wild && !below(64) ? odd_float() : (float)below(256) / 64 - 2;
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    CHECK(counted(ifs_masks_assemble(NULL, &p, prototypes, coefficients, &g, masks, n, plain, nbytes)) == IFS_OK);
    digest("masks", plain, nbytes);
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++)
        if (ifs_set_simd(simd) == IFS_OK) {
            CHECK(ifs_masks_assemble(NULL, &p, prototypes, coefficients, &g, masks, n, other, nbytes) == IFS_OK);
            CHECK(memcmp(plain, other, nbytes) == 0);
        }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    for (int32_t i = 0; i < n; i++) {
        static uint32_t runs[90 * 90 + 2];
        int64_t count = 0, sum = 0;
        CHECK(ifs_mask_runs(&masks[i], plain + masks[i].offset, g.source_width, g.source_height, runs,
                            (int64_t)(sizeof runs / sizeof *runs), &count) == IFS_OK);
        for (int64_t k = 0; k < count; k++)
            sum += runs[k];
        CHECK(sum == (int64_t)g.source_width * g.source_height);
    }
    free(prototypes), free(plain), free(other), free(coefficients);
}
