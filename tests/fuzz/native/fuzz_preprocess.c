/*
 * fuzz_preprocess.c - geometries out of any numbers, and images of every format through them.
 *
 * What a constructor accepts lies within the limits of the header. Pixels lie in blocks of exactly their size; each
 * SIMD variant must give the bytes of the plain one, and a batch those of its images one by one.
 */
#include "fuzz.h"

#include <math.h>

#define SIDE (1 << 20)

static int32_t side(int32_t small) { return below(16) ? 1 + (int32_t)below((uint32_t)small) : odd_number(small); }

static void check_geometry(const ifs_geometry *g) {
    CHECK(g->kind == IFS_GEOMETRY_RESIZE || g->kind == IFS_GEOMETRY_WARP);
    CHECK(g->source_width >= 1 && g->source_width <= SIDE && g->source_height >= 1 && g->source_height <= SIDE);
    CHECK(g->canvas_width >= 1 && g->canvas_width <= SIDE && g->canvas_height >= 1 && g->canvas_height <= SIDE);
    if (g->kind == IFS_GEOMETRY_RESIZE)
        CHECK(g->resized_width >= 1 && g->resized_width <= SIDE && g->resized_height >= 1 && g->resized_height <= SIDE);
    for (int i = 0; i < 6; i++)
        CHECK(isfinite(g->to_source[i]));
}

/* By one of the constructors; what fails leaves its result untouched. */
static ifs_status some_geometry(int32_t sw, int32_t sh, int32_t cw, int32_t ch, ifs_geometry *out) {
    ifs_geometry before;
    memset(out, 0xA5, sizeof *out);
    memcpy(&before, out, sizeof before);
    ifs_status status;
    switch (below(6)) {
    case 0:
        status = ifs_geometry_letterbox(sw, sh, cw, ch, below(8) ? coin() : odd_number(3), out);
        break;
    case 1:
        status = ifs_geometry_letterbox_warp(sw, sh, cw, ch, coin(), out);
        break;
    case 2:
        status = ifs_geometry_stretch(sw, sh, cw, ch, out);
        break;
    case 3: {
        const int32_t factor = coin() ? 2 + coin() : 0; /* which variants may have kernels for */
        const int32_t rw = factor ? sw / factor : side(64), rh = factor ? sh / factor : side(64);
        const int32_t x = below(8) ? (int32_t)below(40) - 20 : odd_number(9);
        status =
            ifs_geometry_resize(sw, sh, cw, ch, rw, rh, x, below(8) ? (int32_t)below(40) - 20 : odd_number(9), out);
        break;
    }
    case 4:
        status = ifs_geometry_resize_crop(sw, sh, side(64), cw, ch, out);
        break;
    default: {
        double m[6];
        for (int i = 0; i < 6; i++)
            m[i] = below(4) ? ((double)below(2001) - 1000) / (i % 3 == 2 ? 10 : 250) : odd_double();
        status = ifs_geometry_affine(sw, sh, cw, ch, m, out);
    }
    }
    counted(status);
    if (status == IFS_OK)
        check_geometry(out);
    else
        CHECK(memcmp(out, &before, sizeof before) == 0);
    return status;
}

/* A struct that no constructor made. */
static void spoil_geometry(ifs_geometry *g) {
    int32_t *numbers[] = {&g->kind,          &g->source_width,   &g->source_height, &g->canvas_width, &g->canvas_height,
                          &g->resized_width, &g->resized_height, &g->offset_x,      &g->offset_y};
    if (coin())
        *numbers[below(sizeof numbers / sizeof *numbers)] = odd_number(70);
    else
        g->to_source[below(6)] = odd_double();
}

typedef struct picked {
    ifs_image image;
    uint8_t *pixels, *uv;
} picked;

/* An image in blocks that end with its last byte. */
static picked some_image(int32_t width, int32_t height) {
    static const int64_t channels[] = {3, 3, 4, 4, 1, 1};
    picked p = {0};
    int32_t format = (int32_t)below(6);
    if (format == IFS_PIXEL_NV12 && (width % 2 || height % 2))
        format = IFS_PIXEL_BGR;
    int64_t row = width * channels[format], stride = row + (coin() ? 0 : (int64_t)below(20));
    size_t nbytes = (size_t)(stride * (height - 1) + row);
    p.pixels = exact(nbytes);
    for (size_t i = 0; i < nbytes; i++)
        p.pixels[i] = (uint8_t)next();
    p.image = (ifs_image){p.pixels, NULL, stride, 0, width, height, format};
    if (format == IFS_PIXEL_NV12) {
        p.image.uv_stride = width + (coin() ? 0 : (int64_t)below(20));
        nbytes = (size_t)(p.image.uv_stride * (height / 2 - 1) + width);
        p.uv = exact(nbytes);
        for (size_t i = 0; i < nbytes; i++)
            p.uv[i] = (uint8_t)next();
        p.image.uv = p.uv;
    }
    return p;
}

static void release(picked *p) { free(p->pixels), free(p->uv); }

/* Sizes that do not fit the pixels are wrong in a way that can be seen: too large a stride cannot, and is not made. */
static void spoil_image(ifs_image *image) {
    switch (below(6)) {
    case 0:
        image->stride = -(int64_t)below(100);
        break;
    case 1:
        image->width = -(int32_t)below(3);
        break;
    case 2:
        image->height = below(2) ? 0 : -0x7FFFFFFF - 1;
        break;
    case 3:
        image->format = coin() ? 6 + (int32_t)below(99) : -1 - (int32_t)below(99);
        break;
    case 4:
        image->data = NULL;
        break;
    default:
        image->width = odd_number(4) > SIDE ? 0x7FFFFFFF : 0;
    }
}

static ifs_pixel_transform some_transform(void) {
    ifs_pixel_transform t = {.order = (int32_t)below(3), .layout = coin(), .dtype = (int32_t)below(3)};
    t.dtype = t.dtype == 2 ? IFS_UINT8 : t.dtype;
    for (int c = 0; c < 3; c++) {
        t.fill[c] = (uint8_t)next();
        t.scale[c] = below(16) ? (float)below(1000) / 255000 : odd_float();
        t.bias[c] = below(16) ? (float)below(100) / 10 - 5 : odd_float();
    }
    if (!below(16))
        *(coin() ? &t.order : coin() ? &t.layout : &t.dtype) = odd_number(12);
    return t;
}

/* A status, and the bytes if it is good, in one variant. */
static ifs_status run(int32_t simd, const ifs_image *image, const ifs_geometry *g, const ifs_pixel_transform *t,
                      uint8_t *dst, size_t nbytes) {
    CHECK(ifs_set_simd(simd) == IFS_OK);
    memset(dst, 0xC3, nbytes);
    return ifs_preprocess(image, g, t, dst, nbytes);
}

static void pixels(const ifs_geometry *geometry) {
    ifs_geometry g = *geometry;
    picked p = some_image(g.source_width, g.source_height);
    ifs_pixel_transform t = some_transform();
    int spoiled = !below(8);
    if (spoiled) {
        if (coin())
            spoil_image(&p.image);
        else
            spoil_geometry(&g);
    }
    size_t nbytes = ifs_preprocess_nbytes(&g, &t);
    if (nbytes > 1 << 20) { /* a canvas that was spoiled to one too large to be filled */
        release(&p);
        return;
    }
    size_t given = below(16) || nbytes == 0 ? nbytes : nbytes - 1 - below((uint32_t)nbytes);
    uint8_t *plain = exact(given), *other = exact(given);
    ifs_status status = counted(run(IFS_SIMD_PLAIN, &p.image, &g, &t, plain, given));
    CHECK(given == nbytes || status != IFS_OK);
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++) {
        if (ifs_set_simd(simd) != IFS_OK)
            continue;
        CHECK(run(simd, &p.image, &g, &t, other, given) == status);
        CHECK(status != IFS_OK || memcmp(plain, other, given) == 0);
    }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    if (status == IFS_OK)
        digest("preprocess", plain, given);
    if (status == IFS_OK && !below(4)) { /* twice in a batch */
        ifs_image images[] = {p.image, p.image};
        ifs_geometry geometries[] = {g, g};
        uint8_t *both = exact(2 * given);
        CHECK(counted(ifs_preprocess_batch(NULL, images, geometries, 2, &t, both, 2 * given, NULL, NULL)) == IFS_OK);
        CHECK(memcmp(both, plain, given) == 0 && memcmp(both + given, plain, given) == 0);
        CHECK(ifs_preprocess_batch(NULL, images, geometries, 2, &t, both, 2 * given - 1, NULL, NULL) != IFS_OK);
        free(both);
    }
    if (status == IFS_OK && p.image.format != IFS_PIXEL_NV12) { /* the rows that a resize reads are all that it needs */
        ifs_rows rows;
        ifs_geometry compact;
        CHECK(counted(ifs_geometry_rows(&g, &rows, &compact)) == IFS_OK);
        if (!spoiled)
            check_geometry(&compact);
        size_t row = (size_t)p.image.width * (p.image.format < 2 ? 3 : p.image.format < 4 ? 4 : 1), n = 0;
        uint8_t *copy = exact(row * (size_t)compact.source_height);
        for (int32_t y = rows.first; y < g.source_height && n < (size_t)compact.source_height; y += rows.step)
            for (int32_t k = 0; k < rows.take && n < (size_t)compact.source_height && y + k < g.source_height; k++, n++)
                memcpy(copy + n * row, p.image.data + (y + k) * p.image.stride, row);
        CHECK(n == (size_t)compact.source_height);
        ifs_image fewer = {copy, NULL, (int64_t)row, 0, p.image.width, compact.source_height, p.image.format};
        CHECK(ifs_preprocess(&fewer, &compact, &t, other, given) == IFS_OK);
        CHECK(memcmp(plain, other, given) == 0);
        free(copy);
    }
    free(plain), free(other);
    release(&p);
}

static void upload_size(const ifs_geometry *g) {
    ifs_image image = {(const uint8_t *)"", NULL, 0, 0, g->source_width, g->source_height, (int32_t)below(5)};
    image.stride = (int64_t)image.width * 4 + (int64_t)below(5);
    size_t nbytes = 0;
    if (!below(8))
        spoil_image(&image);
    if (counted(ifs_upload_nbytes(&image, g, below(8) ? 1 : odd_number(1), &nbytes)) == IFS_OK && nbytes)
        CHECK(nbytes % 256 == 0 || nbytes >= (size_t)image.width);
}

/* A resize by a filter: every variant gives the plain one's bytes, and a part those of the whole. */
static void resampled(void) {
    int32_t format = below(16) ? (int32_t)below(5) : odd_number(6), pixel = format == 4 ? 1 : format >= 2 ? 4 : 3;
    int32_t w = 1 + (int32_t)below(40), h = 1 + (int32_t)below(40), filter = below(16) ? coin() : odd_number(2);
    int32_t rw = 1 + (int32_t)below(40), rh = 1 + (int32_t)below(40), x = (int32_t)below((uint32_t)rw),
            y = (int32_t)below((uint32_t)rh), cw = 1 + (int32_t)below((uint32_t)(rw - x)),
            ch = 1 + (int32_t)below((uint32_t)(rh - y));
    int64_t stride = (int64_t)w * pixel + below(8);
    size_t nbytes = (size_t)(stride * (h - 1) + (int64_t)w * pixel), channels = format == 4 ? 1 : 3;
    uint8_t *data = exact(nbytes), *whole = exact((size_t)rw * (size_t)rh * channels),
            *part = exact((size_t)cw * (size_t)ch * channels), *other = exact((size_t)cw * (size_t)ch * channels);
    int binary = coin();
    for (size_t i = 0; i < nbytes; i++)
        data[i] = binary ? (coin() ? 255 : 0) : (uint8_t)next();
    ifs_image image = {data, NULL, stride, 0, w, h, format};
    int32_t *numbers[] = {&x, &y, &cw, &ch, &rw, &rh}, *odd = numbers[below(6)], number = odd_number(50);
    if (!below(8) && number < *odd) /* never more than there is memory for */
        *odd = number;
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    int good = format >= 0 && format <= 4 && (filter == 0 || filter == 1) && rw >= 1 && rh >= 1 && cw >= 1 && ch >= 1 &&
               x >= 0 && y >= 0 && x <= rw - cw && y <= rh - ch;
    CHECK((counted(ifs_resample(&image, rw, rh, filter, x, y, cw, ch, part)) == IFS_OK) == good);
    for (int32_t simd = IFS_SIMD_NEON; good && simd <= IFS_SIMD_AVX512; simd++)
        if (ifs_set_simd(simd) == IFS_OK) {
            CHECK(ifs_resample(&image, rw, rh, filter, x, y, cw, ch, other) == IFS_OK);
            CHECK(memcmp(part, other, (size_t)cw * (size_t)ch * channels) == 0);
        }
    if (good) {
        digest("resample", part, (size_t)cw * (size_t)ch * channels);
        CHECK(ifs_resample(&image, rw, rh, filter, 0, 0, rw, rh, whole) == IFS_OK);
        for (int32_t row = 0; row < ch; row++)
            CHECK(memcmp(part + (size_t)row * (size_t)cw * channels,
                         whole + ((size_t)(y + row) * (size_t)rw + (size_t)x) * channels, (size_t)cw * channels) == 0);
    }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    free(data), free(whole), free(part), free(other);
}

static void one_case(void) {
    if (!below(6)) {
        resampled();
        return;
    }
    int small = below(8) != 0;
    int32_t sw = small ? 1 + (int32_t)below(64) : side(700), sh = small ? 1 + (int32_t)below(40) : side(700);
    int32_t cw = small ? 1 + (int32_t)below(40) : side(700), ch = small ? 1 + (int32_t)below(40) : side(700);
    ifs_geometry g;
    if (some_geometry(sw, sh, cw, ch, &g) != IFS_OK)
        return;
    if (small)
        pixels(&g);
    else if (coin())
        upload_size(&g);
    else {
        ifs_rows rows;
        ifs_geometry compact;
        if (!below(4))
            spoil_geometry(&g);
        if (counted(ifs_geometry_rows(&g, &rows, &compact)) == IFS_OK)
            CHECK(rows.step >= 1 && rows.take >= 1 && rows.take <= rows.step && rows.first >= 0);
    }
}
