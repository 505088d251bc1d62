/*
 * fuzz_decode.c - outputs and maps of heads out of any numbers, decoded to boxes; NMS, top-k and the
 * sizes of the blocks of a device's results.
 *
 * What comes out keeps the promises of the header: order, limits, edges within the image, statistics that add up. Each
 * SIMD variant gives the bits of the plain one; NMS and top-k those of the few lines here that define them.
 */
#include "fuzz.h"

#include <math.h>

#define MAX_DETECTIONS 64

/* Numbers of a head: mostly 0 to 1, with ties, now and then none at all. */
static float score(void) { return below(12) ? (float)below(65) / 64 : odd_float(); }

static uint16_t half_bits(void) { return below(8) ? (uint16_t)(0x3400 + below(0x800)) : (uint16_t)next(); }

#define MOST_CLASSES 40
static uint8_t class_mask[MOST_CLASSES];

static ifs_detect_params some_params(void) {
    ifs_detect_params p = {.head = (int32_t)below(3),
                           .dtype = (int32_t)below(2),
                           .num_classes = 1 + (int32_t)below(below(4) ? 6 : 40),
                           .num_anchors = 1 + (int32_t)below(below(4) ? 40 : 300),
                           .num_extra = below(3) ? 0 : (int32_t)below(5),
                           .multi_label = coin(),
                           .class_agnostic = coin(),
                           .max_candidates = coin() ? 0 : (int32_t)below(40),
                           .max_detections = 1 + (int32_t)below(MAX_DETECTIONS),
                           .conf_threshold = (float)below(65) / 64,
                           .iou_threshold = (float)below(65) / 64};
    if (!below(3)) {
        for (int32_t c = 0; c < MOST_CLASSES; c++)
            class_mask[c] = below(32) ? (uint8_t)coin() : (uint8_t)next();
        p.class_mask = class_mask;
    }
    if (p.head == IFS_DETECT_HEAD_YOLOX)
        for (p.num_strides = 1 + (int32_t)below(3); p.num_strides > 3; p.num_strides--)
            ;
    for (int32_t i = 0; i < p.num_strides; i++)
        p.strides[i] = 8 << i;
    return p;
}

/* One number that is wrong, mostly. */
static void spoil(ifs_detect_params *p) {
    int32_t *numbers[] = {&p->head,           &p->dtype,          &p->num_classes, &p->num_anchors, &p->num_extra,
                          &p->max_candidates, &p->max_detections, &p->num_strides, &p->strides[0],  &p->strides[7]};
    switch (below(4)) {
    case 0:
        p->conf_threshold = odd_float();
        break;
    case 1:
        p->iou_threshold = odd_float();
        break;
    default:
        *numbers[below(sizeof numbers / sizeof *numbers)] = odd_number(12);
        if (p->num_classes > MOST_CLASSES)
            p->class_mask = NULL; /* it is shorter than it would have to be */
    }
}

static ifs_geometry some_geometry(const ifs_detect_params *p) {
    ifs_geometry g;
    int32_t cw = 8 * (1 + (int32_t)below(8)), ch = 8 * (1 + (int32_t)below(8));
    int32_t sw = 1 + (int32_t)below(200), sh = 1 + (int32_t)below(200);
    if (p->head == IFS_DETECT_HEAD_YOLOX)
        cw = ch = 32 * (1 + (int32_t)below(3));
    switch (below(4)) {
    case 0:
        CHECK(ifs_geometry_stretch(sw, sh, cw, ch, &g) == IFS_OK);
        break;
    case 1: {
        double m[6] = {1 + (double)below(9) / 8, (double)below(5) / 16, -3, -(double)below(5) / 16, 1, 4};
        CHECK(ifs_geometry_affine(sw, sh, cw, ch, m, &g) == IFS_OK);
        break;
    }
    default:
        CHECK(ifs_geometry_letterbox(sw, sh, cw, ch, 1, &g) == IFS_OK);
    }
    return g;
}

static void check_detections(const ifs_detect_params *p, const ifs_geometry *g, const ifs_detection *d, int32_t count,
                             const ifs_detect_stats *s) {
    CHECK(count >= 0 && count <= p->max_detections);
    CHECK(s->kept == count + s->dropped_detections && s->dropped_detections >= 0 && s->dropped_candidates >= 0);
    CHECK(s->dropped_detections == 0 || count == p->max_detections);
    CHECK(s->candidates - s->dropped_candidates >= s->kept);
    CHECK(s->candidates <= (int64_t)p->num_anchors * (p->multi_label ? p->num_classes : 1));
    CHECK(p->max_candidates == 0 || s->candidates - s->dropped_candidates <= p->max_candidates);
    for (int32_t i = 0; i < count; i++) {
        CHECK(isfinite(d[i].score) && d[i].score > p->conf_threshold);
        CHECK(i == 0 || d[i].score <= d[i - 1].score);
        CHECK(!p->class_mask || p->class_mask[d[i].class_id] == 1);
        CHECK(d[i].class_id >= 0 && d[i].class_id < p->num_classes && d[i].row >= 0 && d[i].row < p->num_anchors);
        CHECK(d[i].x1 >= 0 && d[i].x1 <= d[i].x2 && d[i].x2 <= (float)g->source_width);
        CHECK(d[i].y1 >= 0 && d[i].y1 <= d[i].y2 && d[i].y2 <= (float)g->source_height);
    }
}

static void decode(void) {
    ifs_detect_params p = some_params();
    ifs_geometry g = some_geometry(&p);
    if (p.head == IFS_DETECT_HEAD_YOLOX && below(8)) {
        p.num_anchors = 0;
        for (int32_t i = 0; i < p.num_strides; i++)
            p.num_anchors += (g.canvas_width / p.strides[i]) * (g.canvas_height / p.strides[i]);
    }
    if (!below(8))
        spoil(&p);
    ifs_detection_decoder *decoder = NULL;
    if (counted(ifs_detection_decoder_create(&p, &decoder)) != IFS_OK) {
        CHECK(decoder == NULL);
        return;
    }
    CHECK(p.conf_threshold >= 0 && p.conf_threshold <= 1 && p.iou_threshold >= 0 && p.iou_threshold <= 1);
    size_t leading = p.head == IFS_DETECT_HEAD_YOLOV8 ? 4 : 5;
    size_t values = (size_t)p.num_anchors * (leading + (size_t)p.num_classes + (size_t)p.num_extra);
    if (p.num_anchors > 4096 || p.num_classes > 4096 || p.num_extra > 4096 || values > 1 << 16 ||
        p.max_detections > 4096) { /* spoiled to more than is worth filling */
        ifs_detection_decoder_destroy(decoder);
        return;
    }
    void *output = exact(values * (p.dtype == IFS_FLOAT32 ? 4 : 2));
    int sizes = coin(); /* boxes of a sensible size, or anything */
    for (size_t i = 0; i < values; i++)
        if (p.dtype == IFS_FLOAT32)
            ((float *)output)[i] = sizes && !below(3) ? (float)below(512) / 4 : score();
        else
            ((uint16_t *)output)[i] = half_bits();
    ifs_detection *plain = exact(sizeof *plain * (size_t)p.max_detections),
                  *other = exact(sizeof *other * (size_t)p.max_detections);
    ifs_detect_stats stats, again;
    int32_t count = -7, number = -7;
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    ifs_status status = counted(ifs_detection_decoder_run(decoder, output, &g, plain, &count, &stats));
    if (status == IFS_OK) {
        check_detections(&p, &g, plain, count, &stats);
        digest("decode", plain, sizeof *plain * (size_t)count);
    } else
        CHECK(p.head == IFS_DETECT_HEAD_YOLOX && status == IFS_ERR_SHAPE && count == -7);
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++) {
        if (ifs_set_simd(simd) != IFS_OK)
            continue;
        CHECK(ifs_detection_decoder_run(decoder, output, &g, other, &number, &again) == status);
        if (status != IFS_OK)
            continue;
        CHECK(number == count && memcmp(&stats, &again, sizeof stats) == 0);
        CHECK(memcmp(plain, other, sizeof *plain * (size_t)count) == 0);
    }
    ifs_detection_decoder_destroy(decoder);
    free(output), free(plain), free(other);
}

/* The map that a level's convolution makes of its features, [channels][positions]. */
static void *map_of(const ifs_detect_level *level, const float *features, size_t channels) {
    size_t positions = (size_t)level->width * (size_t)level->height, count = (size_t)level->num_features;
    float *map = exact(channels * positions * sizeof *map);
    for (size_t i = 0; i < channels; i++)
        for (size_t at = 0; at < positions; at++) {
            float sum = level->bias ? level->bias[i] : 0.0f;
            for (size_t k = 0; k < count; k++) {
                float product = level->weights[i * count + k] * features[k * positions + at];
                sum += product;
            }
            map[i * positions + at] = sum;
        }
    return map;
}

/* The maps of features give the same bits as the features. */
static void check_features(const ifs_detect_params *p, ifs_raw_head raw, void *const *maps, const ifs_geometry *g,
                           const ifs_detection *wanted, int32_t count) {
    void *others[IFS_MAX_LEVELS] = {NULL};
    for (int32_t i = 0; i < raw.num_levels; i++) {
        ifs_detect_level *level = &raw.levels[i];
        size_t channels = (size_t)level->num_anchors * (size_t)(5 + p->num_classes + p->num_extra);
        others[i] = level->num_features ? map_of(level, maps[i], channels) : maps[i];
        level->num_features = 0;
    }
    ifs_detection_decoder *decoder = NULL;
    CHECK(ifs_detection_decoder_create_raw(p, &raw, &decoder) == IFS_OK);
    ifs_detection *found = exact(sizeof *found * (size_t)p->max_detections);
    int32_t number = -7;
    CHECK(ifs_detection_decoder_run_raw(decoder, (const void *const *)others, g, found, &number, NULL) == IFS_OK);
    CHECK(number == count && memcmp(found, wanted, sizeof *found * (size_t)count) == 0);
    ifs_detection_decoder_destroy(decoder);
    for (int32_t i = 0; i < raw.num_levels; i++)
        if (others[i] != maps[i])
            free(others[i]);
    free(found);
}

/* Makes a level one of features, with weights of its own. */
static void with_features(ifs_detect_level *level, const ifs_detect_params *p) {
    size_t channels = (size_t)level->num_anchors * (size_t)(5 + p->num_classes + p->num_extra);
    level->num_features = 1 + (int32_t)below(below(8) ? 20 : 100);
    float *weights = exact(channels * (size_t)level->num_features * sizeof *weights),
          *bias = below(4) ? exact(channels * sizeof *bias) : NULL;
    for (size_t i = 0; i < channels * (size_t)level->num_features; i++)
        weights[i] = below(256) ? (float)below(33) / 16 - 1 : odd_float();
    for (size_t i = 0; bias && i < channels; i++)
        bias[i] = (float)below(64) / 8 - 6;
    level->weights = weights, level->bias = bias;
}

static void free_weights(const ifs_raw_head *raw) {
    for (int32_t i = 0; i < IFS_MAX_LEVELS; i++) {
        free((void *)raw->levels[i].weights);
        free((void *)raw->levels[i].bias);
    }
}

/* Maps of a raw head: logits, most of them low. */
static void decode_raw(void) {
    ifs_detect_params p = some_params();
    ifs_raw_head raw = {.num_levels = 1 + (int32_t)below(3)};
    p.head = coin() ? IFS_DETECT_HEAD_YOLOV5 : IFS_DETECT_HEAD_YOLOV8;
    p.num_strides = 0, p.num_anchors = 0;
    if (p.head == IFS_DETECT_HEAD_YOLOV8)
        p.num_extra = 0, raw.num_bins = 1 + (int32_t)below(17);
    for (int32_t i = 0; i < raw.num_bins; i++)
        raw.bins[i] = (float)i;
    for (int32_t i = 0; i < raw.num_levels; i++) {
        int32_t boxes = p.head == IFS_DETECT_HEAD_YOLOV5 ? 1 + (int32_t)below(4) : 1;
        raw.levels[i] =
            (ifs_detect_level){1 + (int32_t)below(20), 1 + (int32_t)below(9), 8 << i, boxes, 0, {0}, NULL, NULL};
        for (int32_t k = 0; k < 16; k++)
            raw.levels[i].anchors[k] = (float)(1 + below(200));
        p.num_anchors += raw.levels[i].width * raw.levels[i].height * boxes;
        if (p.head == IFS_DETECT_HEAD_YOLOV5 && p.dtype == IFS_FLOAT32 && coin())
            with_features(&raw.levels[i], &p);
    }
    const ifs_raw_head whole = raw; /* its numbers may be spoiled next */
    if (!below(8)) {
        int32_t *numbers[] = {&p.num_anchors,
                              &raw.num_levels,
                              &raw.num_bins,
                              &raw.levels[0].width,
                              &raw.levels[0].height,
                              &raw.levels[0].stride,
                              &raw.levels[0].num_anchors};
        *numbers[below(sizeof numbers / sizeof *numbers)] = odd_number(12);
        raw.levels[0].anchors[below(2)] = odd_float();
    }
    ifs_geometry g = some_geometry(&p);
    ifs_detection_decoder *decoder = NULL;
    if (counted(ifs_detection_decoder_create_raw(&p, &raw, &decoder)) != IFS_OK) {
        CHECK(decoder == NULL);
        free_weights(&whole);
        return;
    }
    if (p.num_anchors > 1 << 14) { /* spoiled to more than is worth filling */
        ifs_detection_decoder_destroy(decoder);
        free_weights(&whole);
        return;
    }
    void *maps[2 * IFS_MAX_LEVELS] = {NULL};
    int32_t num_maps = 0;
    for (int32_t i = 0; i < raw.num_levels; i++)
        for (int32_t part = 0; part < (p.head == IFS_DETECT_HEAD_YOLOV8 ? 2 : 1); part++) {
            int32_t channels = raw.levels[i].num_features ? raw.levels[i].num_features
                               : p.head == IFS_DETECT_HEAD_YOLOV5
                                   ? raw.levels[i].num_anchors * (5 + p.num_classes + p.num_extra)
                               : part == 0 ? 4 * raw.num_bins
                                           : p.num_classes;
            size_t values = (size_t)raw.levels[i].width * (size_t)raw.levels[i].height * (size_t)channels;
            maps[num_maps] = exact(values * (p.dtype == IFS_FLOAT32 ? 4 : 2));
            for (size_t k = 0; k < values; k++)
                if (p.dtype == IFS_FLOAT32)
                    ((float *)maps[num_maps])[k] = below(32) ? (float)below(96) / 8 - 9 : odd_float();
                else
                    ((uint16_t *)maps[num_maps])[k] = (uint16_t)(below(4) ? 0xB800 + below(0x1000) : next());
            num_maps++;
        }
    ifs_detection *plain = exact(sizeof *plain * (size_t)p.max_detections),
                  *other = exact(sizeof *other * (size_t)p.max_detections);
    ifs_detect_stats stats, again;
    int32_t count = -7, number = -7;
    CHECK(counted(ifs_detection_decoder_run(decoder, maps[0], &g, plain, &count, &stats)) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    CHECK(counted(ifs_detection_decoder_run_raw(decoder, (const void *const *)maps, &g, plain, &count, &stats)) ==
          IFS_OK);
    check_detections(&p, &g, plain, count, &stats);
    digest("decode raw", plain, sizeof *plain * (size_t)count);
    if (p.head == IFS_DETECT_HEAD_YOLOV5)
        check_features(&p, raw, maps, &g, plain, count);
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++) {
        if (ifs_set_simd(simd) != IFS_OK)
            continue;
        CHECK(ifs_detection_decoder_run_raw(decoder, (const void *const *)maps, &g, other, &number, &again) == IFS_OK);
        CHECK(number == count && memcmp(&stats, &again, sizeof stats) == 0);
        CHECK(memcmp(plain, other, sizeof *plain * (size_t)count) == 0);
    }
    ifs_detection_decoder_destroy(decoder);
    for (int32_t i = 0; i < num_maps; i++)
        free(maps[i]);
    free_weights(&whole);
    free(plain), free(other);
}

static float area(const float *b) { return (b[2] - b[0]) * (b[3] - b[1]); }

static int overlap(const float *a, const float *b, float threshold) {
    float w = fminf(a[2], b[2]) - fmaxf(a[0], b[0]), h = fminf(a[3], b[3]) - fmaxf(a[1], b[1]);
    if (!(a[2] > a[0] && a[3] > a[1] && b[2] > b[0] && b[3] > b[1]) || w <= 0 || h <= 0)
        return 0;
    float inter = w * h, sum = area(a) + area(b);
    sum = sum - inter;
    return inter > threshold * sum;
}

static void nms(void) {
    enum { MOST = 48 };
    int64_t n = below(16) ? (int64_t)below(MOST) : -(int64_t)below(3), kept = -7, expected = 0;
    size_t capacity = n > 0 ? (size_t)n : 0;
    float *boxes = exact(16 * capacity), *scores = exact(4 * capacity),
          threshold = below(16) ? (float)below(65) / 64 : odd_float();
    int32_t *classes = exact(4 * capacity);
    int64_t *keep = exact(8 * capacity), *other = exact(8 * capacity), number = -7, order[MOST];
    int finite = 1, wild = !below(8), grouped = coin();
    for (size_t i = 0; i < capacity; i++) {
        for (int k = 0; k < 4; k++) {
            boxes[4 * i + (size_t)k] = wild && !below(16) ? odd_float() : (float)below(64);
            finite = finite && isfinite(boxes[4 * i + (size_t)k]);
        }
        if (below(8)) /* mostly in order */
            boxes[4 * i + 2] += boxes[4 * i], boxes[4 * i + 3] += boxes[4 * i + 1];
        scores[i] = wild && !below(16) ? odd_float() : (float)below(16) - 4;
        classes[i] = (int32_t)below(3);
        finite = finite && isfinite(scores[i]) && isfinite(boxes[4 * i + 2]) && isfinite(boxes[4 * i + 3]);
        order[i] = (int64_t)i;
    }
    const int32_t *ids = grouped ? classes : NULL;
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    ifs_status status = counted(ifs_nms(boxes, scores, ids, n, IFS_MATCH_IOU, threshold, keep, &kept, NULL));
    for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++)
        if (ifs_set_simd(simd) == IFS_OK) {
            CHECK(ifs_nms(boxes, scores, ids, n, IFS_MATCH_IOU, threshold, other, &number, NULL) == status);
            CHECK(number == kept && (status != IFS_OK || memcmp(keep, other, 8 * (size_t)kept) == 0));
        }
    if (status == IFS_OK)
        digest("nms", keep, 8 * (size_t)kept);
    int good = n >= 0 && finite && threshold >= 0 && threshold <= 1;
    CHECK((status == IFS_OK) == good);
    if (status == IFS_OK && !wild) { /* huge boxes overflow in ways that the definition does not settle */
        for (size_t i = 1; i < capacity; i++) /* best first, equal ones by index */
            for (size_t k = i; k > 0 && scores[order[k]] > scores[order[k - 1]]; k--) {
                int64_t swap = order[k];
                order[k] = order[k - 1], order[k - 1] = swap;
            }
        int64_t alive[MOST];
        for (size_t i = 0; i < capacity; i++) {
            int suppressed = 0;
            for (int64_t k = 0; k < expected && !suppressed; k++)
                suppressed = (!grouped || classes[alive[k]] == classes[order[i]]) &&
                             overlap(boxes + 4 * alive[k], boxes + 4 * order[i], threshold);
            if (!suppressed)
                alive[expected++] = order[i];
        }
        CHECK(kept == expected && memcmp(keep, alive, 8 * (size_t)kept) == 0);
    }
    free(boxes), free(scores), free(classes), free(keep), free(other);
}

static void topk(void) {
    int64_t n = below(16) ? 1 + (int64_t)below(200) : -(int64_t)below(3);
    int32_t k = below(16) ? 1 + (int32_t)below(12) : odd_number(12), softmax = coin(),
            dtype = below(16) ? 0 : odd_number(3);
    size_t capacity = n > 0 ? (size_t)n : 0, results = k > 0 && k < 4096 ? (size_t)k : 0;
    float *scores = exact(4 * capacity), *best = exact(4 * results), *plain = exact(4 * results);
    int32_t *ids = exact(4 * results), *plain_ids = exact(4 * results);
    int nan = 0, infinite = 0;
    for (size_t i = 0; i < capacity; i++) {
        scores[i] = below(64) ? (float)below(64) / 8 - 4 : odd_float();
        nan |= isnan(scores[i]);
        infinite |= isinf(scores[i]) && scores[i] > 0;
    }
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    if (dtype == IFS_FLOAT16)
        dtype = IFS_FLOAT32;
    ifs_status status = counted(ifs_topk(scores, dtype, n, k, softmax, plain_ids, plain));
    if (dtype == IFS_FLOAT32 && n >= 1 && k >= 1 && k <= n && !nan && !(softmax && infinite)) {
        int lowest = 1; /* softmax of nothing but minus infinity has no largest score that is finite */
        for (size_t i = 0; i < capacity; i++)
            lowest &= isinf(scores[i]) != 0;
        CHECK(status == IFS_OK || (softmax && lowest));
    } else
        CHECK(status != IFS_OK);
    if (status == IFS_OK) {
        digest("topk", plain, 4 * results);
        digest("topk", plain_ids, 4 * results);
        for (int32_t i = 0; i < k; i++) {
            CHECK(plain_ids[i] >= 0 && plain_ids[i] < n);
            if (i) {
                float a = scores[plain_ids[i - 1]], b = scores[plain_ids[i]];
                CHECK(a > b || (a == b && plain_ids[i - 1] < plain_ids[i]));
            }
            CHECK(softmax ? plain[i] >= 0 && plain[i] <= 1 : plain[i] == scores[plain_ids[i]]);
        }
        for (int32_t simd = IFS_SIMD_NEON; simd <= IFS_SIMD_AVX512; simd++)
            if (ifs_set_simd(simd) == IFS_OK) {
                CHECK(ifs_topk(scores, dtype, n, k, softmax, ids, best) == IFS_OK);
                CHECK(memcmp(ids, plain_ids, 4 * results) == 0 && memcmp(best, plain, 4 * results) == 0);
            }
    }
    free(scores), free(best), free(plain), free(ids), free(plain_ids);
}

/* The bytes of a device's results. */
static void block_nbytes(void) {
    int32_t most = 1 + (int32_t)below(6), images = 1 + (int32_t)below(4);
    size_t nbytes = ifs_cuda_detections_nbytes(most, images);
    CHECK(nbytes % 8 == 0 && nbytes >= (size_t)images * sizeof(ifs_cuda_detections));
    size_t huge = ifs_cuda_detections_nbytes(odd_number(9), odd_number(9));
    CHECK(huge == 0 || huge % 8 == 0);
}

static void one_case(void) {
    switch (below(8)) {
    case 0:
        nms();
        break;
    case 1:
        topk();
        break;
    case 2:
        block_nbytes();
        break;
    case 3:
    case 4:
        decode_raw();
        break;
    default:
        decode();
    }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
}
