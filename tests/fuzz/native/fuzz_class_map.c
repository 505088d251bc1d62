/*
 * fuzz_class_map.c - maps of classes out of any scores, layouts, sizes and geometries.
 *
 * Each pixel has the class that the definition gives it, computed here for one pixel after the other. Each SIMD
 * variant, both layouts, and scores of float16 as float32 give the bits of the plain one. Nothing is read or written
 * beyond the blocks, which the address sanitizer watches.
 */
#include "fuzz.h"

#include "class_map.h"
#include "masks.h"

#include <math.h>

/* More scores than this are not worth filling. */
#define MOST_SCORES (1 << 14)

static ifs_class_map_params some_params(int32_t canvas_width, int32_t canvas_height) {
    ifs_class_map_params p = {.dtype = below(3) ? IFS_FLOAT32 : IFS_FLOAT16,
                              .num_classes = 1 + (int32_t)below(below(4) ? 8 : 255),
                              .layout = coin() ? IFS_LAYOUT_CHW : IFS_LAYOUT_HWC,
                              .threshold = (float)below(65) / 64 - 0.25f};
    p.width = 1 + (int32_t)below((uint32_t)canvas_width);
    p.height = 1 + (int32_t)below((uint32_t)canvas_height);
    return p;
}

static void spoil(ifs_class_map_params *p, ifs_geometry *g) {
    int32_t *numbers[] = {&p->dtype,        &p->num_classes,   &p->width,          &p->height,   &p->layout,
                          &g->source_width, &g->canvas_height, &g->resized_height, &g->offset_x, &g->kind,
                          &g->canvas_width, &g->resized_width, &g->source_height,  &g->offset_y};
    if (below(6))
        *numbers[below(sizeof numbers / sizeof *numbers)] = odd_number(12);
    else if (coin())
        p->threshold = odd_float();
    else
        g->to_source[below(6)] = odd_double();
}

static ifs_geometry some_geometry(int32_t cw, int32_t ch) {
    ifs_geometry g;
    int32_t sw = 1 + (int32_t)below(90), sh = 1 + (int32_t)below(90);
    switch (below(4)) {
    case 0:
        CHECK(ifs_geometry_stretch(sw, sh, cw, ch, &g) == IFS_OK);
        break;
    case 1: {
        double turned = below(4) ? 0 : 0.25;
        double m[6] = {0.5 + (double)below(9) / 8, turned, (double)below(9) - 4, -turned,
                       0.5 + (double)below(9) / 8, 3};
        CHECK(ifs_geometry_affine(sw, sh, cw, ch, m, &g) == IFS_OK);
        break;
    }
    default:
        CHECK(ifs_geometry_letterbox(sw, sh, cw, ch, coin(), &g) == IFS_OK);
    }
    return g;
}

/* The score of a class at a point, in float32. */
static float score_at(const ifs_class_map_params *p, const float *scores, int32_t c, int32_t x, int32_t y) {
    size_t points = (size_t)p->width * (size_t)p->height, point = (size_t)y * (size_t)p->width + (size_t)x;
    return p->layout == IFS_LAYOUT_CHW ? scores[(size_t)c * points + point]
                                       : scores[point * (size_t)p->num_classes + (size_t)c];
}

static uint8_t best_at(const ifs_class_map_params *p, const float *scores, int32_t x, int32_t y) {
    float highest = -INFINITY;
    uint8_t best = 0;
    for (int32_t c = 0; c < p->num_classes; c++)
        if (score_at(p, scores, c, x, y) > highest)
            highest = score_at(p, scores, c, x, y), best = (uint8_t)c;
    return p->num_classes == 1 ? highest > p->threshold : best;
}

static uint8_t class_of(const ifs_class_map_params *p, const float *scores, const ifs__mask_side sides[2], int32_t x,
                        int32_t y) {
    if (x < sides[0].first || x >= sides[0].end || y < sides[1].first || y >= sides[1].end)
        return IFS_NO_CLASS;
    const ifs__class_tap h = ifs__class_tap_of(&sides[0], x), v = ifs__class_tap_of(&sides[1], y);
    const uint8_t corner = best_at(p, scores, h.index, v.index);
    if (corner == best_at(p, scores, h.beside, v.index) && corner == best_at(p, scores, h.index, v.beside) &&
        corner == best_at(p, scores, h.beside, v.beside))
        return corner;
    float highest = -INFINITY;
    uint8_t best = 0;
    for (int32_t c = 0; c < p->num_classes; c++) {
        const float score = ifs__class_blend(
            score_at(p, scores, c, h.index, v.index), score_at(p, scores, c, h.next, v.index),
            score_at(p, scores, c, h.index, v.next), score_at(p, scores, c, h.next, v.next), h.weight, v.weight);
        if (score > highest)
            highest = score, best = (uint8_t)c;
    }
    return p->num_classes == 1 ? highest > p->threshold : best;
}

/* The scores in the other layout. */
static float *transposed(const ifs_class_map_params *p, const float *scores, size_t count) {
    float *other = exact(4 * count);
    size_t points = (size_t)p->width * (size_t)p->height, classes = (size_t)p->num_classes;
    for (size_t i = 0; i < points; i++)
        for (size_t c = 0; c < classes; c++)
            if (p->layout == IFS_LAYOUT_CHW)
                other[i * classes + c] = scores[c * points + i];
            else
                other[c * points + i] = scores[i * classes + c];
    return other;
}

static void check_map(ifs_class_map_params p, const ifs_geometry *g, const float *scores, size_t count,
                      const uint8_t *plain, size_t pixels) {
    ifs__mask_side sides[2];
    CHECK(ifs__class_map_sides(&p, g, sides) == IFS_OK);
    uint8_t *map = exact(pixels);
    p.dtype = IFS_FLOAT32;
    CHECK(ifs_class_map(&p, scores, g, map, pixels) == IFS_OK && memcmp(map, plain, pixels) == 0);
    float *other = transposed(&p, scores, count);
    ifs_class_map_params turned = p;
    turned.layout = p.layout == IFS_LAYOUT_CHW ? IFS_LAYOUT_HWC : IFS_LAYOUT_CHW;
    CHECK(ifs_class_map(&turned, other, g, map, pixels) == IFS_OK && memcmp(map, plain, pixels) == 0);
    for (int32_t y = 0; y < g->source_height; y++)
        for (int32_t x = 0; x < g->source_width; x++)
            CHECK(plain[(size_t)y * (size_t)g->source_width + (size_t)x] == class_of(&p, scores, sides, x, y));
    free(map), free(other);
}

static void one_case(void) {
    int32_t cw = 1 + (int32_t)below(40), ch = 1 + (int32_t)below(40);
    ifs_geometry g = some_geometry(cw, ch);
    ifs_class_map_params p = some_params(cw, ch);
    if (!below(6))
        spoil(&p, &g);
    const double product = (double)p.num_classes * p.width * p.height, area = (double)g.source_width * g.source_height;
    if (p.num_classes < 1 || p.width < 1 || p.height < 1 || product > MOST_SCORES || area < 1 || area > 1 << 16) {
        uint8_t pixel;
        CHECK(counted(ifs_class_map(&p, NULL, &g, &pixel, 1)) != IFS_OK);
        return;
    }
    const size_t count = (size_t)product, pixels = (size_t)area, given = below(12) ? pixels : below((uint32_t)pixels);
    const int half = p.dtype == IFS_FLOAT16;
    float *scores = exact(4 * count);
    uint16_t *halves = exact(2 * count);
    const int rare = below(3) ? 0 : 48; /* numbers that are none, ties by few values otherwise */
    for (size_t i = 0; i < count; i++) {
        scores[i] = rare && !below(48) ? odd_float() : (float)below(9) / 8;
        halves[i] = rare && !below(48) ? (uint16_t)next() : (uint16_t)(0x3400 + 64 * below(32));
    }
    if (half)
        CHECK(ifs_convert(halves, IFS_FLOAT16, scores, IFS_FLOAT32, count) == IFS_OK);
    const void *given_scores = half ? (const void *)halves : scores;
    uint8_t *plain = exact(given), *map = exact(given);
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    ifs_status status = counted(ifs_class_map(&p, given_scores, &g, plain, given));
    CHECK(given == pixels || status != IFS_OK);
    if (status == IFS_OK)
        check_map(p, &g, scores, count, plain, pixels), digest("class map", plain, pixels);
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++)
        if (ifs_set_simd(simd) == IFS_OK) {
            CHECK(ifs_class_map(&p, given_scores, &g, map, given) == status);
            CHECK(status != IFS_OK || memcmp(map, plain, pixels) == 0);
        }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    free(scores), free(halves), free(plain), free(map);
}
