/*
 * fuzz_numbers.c - conversion between all types, and the numbers of calibration, each against its plain definition.
 */
#include "fuzz.h"

#include <math.h>

static const int is_signed[IFS_NUM_DTYPES] = {0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0};

static int is_float(int32_t dtype) { return dtype == IFS_FLOAT32 || dtype == IFS_FLOAT16 || dtype == IFS_FLOAT64; }

/* An element of whatever bits; bools are 0 or 1. */
static void some_element(int32_t dtype, uint8_t *at) {
    size_t size = ifs_dtype_size(dtype);
    uint64_t bits = below(4) ? next() : below(3);
    if (dtype == IFS_BOOL)
        bits &= 1;
    else if (dtype == IFS_FLOAT32) {
        float x = odd_float();
        memcpy(&bits, &x, 4);
    } else if (dtype == IFS_FLOAT64) {
        double x = odd_double();
        memcpy(&bits, &x, 8);
    }
    memcpy(at, &bits, size);
}

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double x = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent == 0 ? ldexp(fraction, -24)
                               : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -x : x;
}

/* The value of an element; integers of 64 bits by themselves, for a double does not hold them all. */
static double value_of(int32_t dtype, const uint8_t *at, int64_t *integer, uint64_t *natural) {
    int64_t i = 0;
    uint64_t u = 0;
    float f;
    double d;
    uint16_t half;
    *integer = 0, *natural = 0;
    switch (dtype) {
    case IFS_FLOAT32:
        memcpy(&f, at, 4);
        return (double)f;
    case IFS_FLOAT64:
        memcpy(&d, at, 8);
        return d;
    case IFS_FLOAT16:
        memcpy(&half, at, 2);
        return half_value(half);
    case IFS_INT8:
        i = (int8_t)at[0];
        break;
    case IFS_INT16: {
        int16_t x;
        memcpy(&x, at, 2);
        i = x;
        break;
    }
    case IFS_INT32: {
        int32_t x;
        memcpy(&x, at, 4);
        i = x;
        break;
    }
    case IFS_INT64:
        memcpy(&i, at, 8);
        break;
    default:
        memcpy(&u, at, ifs_dtype_size(dtype));
        *natural = u;
        return (double)u;
    }
    *integer = i;
    return (double)i;
}

static const double lowest[IFS_NUM_DTYPES] = {0, 0, -2147483648.0, 0, -128, -9223372036854775808.0,
                                              0, 0, -32768,        0, 0,    0};
static const double highest[IFS_NUM_DTYPES] = {0, 0, 2147483647, 255,   127,          9223372036854775807.0,
                                               1, 0, 32767,      65535, 4294967295.0, 18446744073709551615.0};

static void check_converted(int32_t from, const uint8_t *src, int32_t to, const uint8_t *dst) {
    int64_t i, oi;
    uint64_t u, ou;
    double x = value_of(from, src, &i, &u), y = value_of(to, dst, &oi, &ou);
    if (from == to) { /* the same bits */
        CHECK(memcmp(src, dst, ifs_dtype_size(from)) == 0);
        return;
    }
    if (to == IFS_BOOL) {
        CHECK(y == (isnan(x) || x != 0));
        return;
    }
    if (is_float(to)) {
        if (isnan(x)) {
            CHECK(isnan(y));
            return;
        }
        if (to == IFS_FLOAT64)
            CHECK(y == (from == IFS_INT64 ? (double)i : from == IFS_UINT64 ? (double)u : x));
        else if (to == IFS_FLOAT32)
            CHECK(y == (double)(from == IFS_INT64 ? (float)i : from == IFS_UINT64 ? (float)u : (float)x));
        else { /* float16: nearest. Its neighbours are no nearer. */
            uint16_t bits;
            memcpy(&bits, dst, 2);
            if (fabs(x) >= 65520)
                CHECK(isinf(y) && (y > 0) == (x > 0));
            else if (isfinite(x)) {
                double up = half_value((uint16_t)(bits + 1)),
                       down = bits & 0x7FFF ? half_value((uint16_t)(bits - 1)) : -ldexp(1, -24) * (bits ? -1 : 1);
                CHECK(fabs(x - y) <= fabs(x - up) || isinf(up) || isnan(up));
                CHECK(fabs(x - y) <= fabs(x - down) || isinf(down));
            }
        }
        return;
    }
    if (is_float(from)) { /* truncated and saturated; NaN is 0 */
        double expected = isnan(x) ? 0 : trunc(x);
        expected = expected < lowest[to] ? lowest[to] : expected > highest[to] ? highest[to] : expected;
        CHECK(y == expected || (expected >= 9223372036854775807.0 && (oi == INT64_MAX || ou == UINT64_MAX)));
        return;
    }
    /* between integers: saturated, in integers */
    __int128 v = is_signed[from] ? (__int128)i : (__int128)u;
    __int128 low = is_signed[to] ? -((__int128)1 << (8 * ifs_dtype_size(to) - 1)) : 0;
    __int128 high = ((__int128)1 << (8 * ifs_dtype_size(to) - (is_signed[to] ? 1 : 0))) - 1;
    __int128 expected = v < low ? low : v > high ? high : v;
    CHECK((is_signed[to] ? (__int128)oi : (__int128)ou) == expected);
}

static void convert(void) {
    int32_t from = below(64) ? (int32_t)below(IFS_NUM_DTYPES) : odd_number(20);
    int32_t to = below(64) ? (int32_t)below(IFS_NUM_DTYPES) : odd_number(20);
    size_t a = ifs_dtype_size(from), b = ifs_dtype_size(to), count = below(70);
    uint8_t *src = exact(count * a), *dst = exact(count * b);
    for (size_t i = 0; i < count && a; i++)
        some_element(from, src + i * a);
    ifs_status status = counted(ifs_convert(src, from, dst, to, count));
    CHECK((status == IFS_OK) == (a && b));
    if (status == IFS_OK && !(is_float(from) && is_float(to))) /* a NaN has many forms */
        digest("convert", dst, count * b);
    for (size_t i = 0; status == IFS_OK && i < count; i++)
        check_converted(from, src + i * a, to, dst + i * b);
    free(src), free(dst);
}

static void ranges(void) {
    int64_t count = (int64_t)below(100);
    float *x = exact(4 * (size_t)count), absmax = below(8) ? 1 + (float)below(100) : odd_float();
    ifs_range plain = {0}, fast = {0}, expected = {0}, channels[4] = {{0}};
    for (int64_t i = 0; i < count; i++) {
        x[i] = odd_float();
        expected.count++;
        if (!isfinite(x[i])) {
            expected.nonfinite++;
            continue;
        }
        int first = expected.count - expected.nonfinite == 1;
        expected.zeros += x[i] == 0;
        expected.min = first || x[i] < expected.min ? x[i] : expected.min;
        expected.max = first || x[i] > expected.max ? x[i] : expected.max;
        expected.sum += x[i];
    }
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    CHECK(counted(ifs_ranges_update(x, 1, 1, count, &plain)) == IFS_OK);
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    int64_t split = count ? (int64_t)below((uint32_t)count + 1) : 0;
    CHECK(ifs_ranges_update(x, 1, 1, split, &fast) == IFS_OK);
    CHECK(ifs_ranges_update(x + split, 1, 1, count - split, &fast) == IFS_OK);
    int64_t inner = count / 8; /* 2 x 4 x inner */
    CHECK(ifs_ranges_update(x, 2, 4, inner, channels) == IFS_OK);
    int64_t seen = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(channels[i].count == 2 * inner);
        CHECK(channels[i].count == channels[i].nonfinite ||
              (channels[i].min >= expected.min && channels[i].max <= expected.max));
        seen += channels[i].zeros;
    }
    CHECK(seen <= expected.zeros);
    CHECK(plain.min == expected.min && plain.max == expected.max && plain.count == expected.count);
    CHECK(plain.nonfinite == expected.nonfinite && plain.zeros == expected.zeros);
    CHECK(fast.min == plain.min && fast.max == plain.max && fast.count == plain.count);
    CHECK(fast.nonfinite == plain.nonfinite && fast.zeros == plain.zeros);
    CHECK(fabs(plain.sum - expected.sum) <=
          1e-9 * (double)count * fmax(fabs((double)plain.min), fabs((double)plain.max)));
    CHECK(fabs(fast.sum - plain.sum) <= 1e-9 * (double)count * fmax(fabs((double)plain.min), fabs((double)plain.max)));

    int32_t num_bins = below(16) ? 1 + (int32_t)below(300) : odd_number(300);
    size_t capacity = num_bins > 0 && num_bins <= 65536 ? (size_t)num_bins : 0;
    int64_t *bins = calloc(capacity + 1, 8), *other = calloc(capacity + 1, 8), left_out = 0, again = 0;
    CHECK(bins && other);
    CHECK(ifs_set_simd(IFS_SIMD_PLAIN) == IFS_OK);
    ifs_status status = counted(ifs_histogram_add(x, count, absmax, bins, num_bins, coin() ? &left_out : NULL));
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
    CHECK(ifs_histogram_add(x, count, absmax, other, num_bins, &again) == status);
    if (status == IFS_OK) {
        int64_t sum = 0;
        for (size_t i = 0; i < capacity; i++)
            sum += bins[i];
        CHECK(sum == expected.count - expected.nonfinite && memcmp(bins, other, 8 * capacity) == 0);
        digest("histogram", bins, 8 * capacity);
        CHECK(again == expected.nonfinite && (left_out == 0 || left_out == again));
    } else
        CHECK(!isfinite(absmax) || absmax <= 0 || !capacity || num_bins % 2 || isinf((float)(num_bins / 2) / absmax));
    CHECK(bins[capacity] == 0 && other[capacity] == 0);
    free(x), free(bins), free(other);
}

static void entropy(void) {
    int32_t num_bins = below(16) ? 2 + (int32_t)below(120) : odd_number(120),
            levels = below(16) ? 1 + (int32_t)below(20) : odd_number(20);
    size_t capacity = num_bins > 0 && num_bins <= 4096 ? (size_t)num_bins : 0;
    if (!capacity && num_bins > 0)
        num_bins = 0; /* more than are worth filling */
    int64_t *bins = calloc(capacity + 1, 8);
    CHECK(bins);
    int sparse = coin(), wild = !below(16);
    for (size_t i = 0; i < capacity; i++)
        bins[i] = sparse && below(3)  ? 0
                  : wild && !below(8) ? (int64_t)(next() >> below(40)) * (coin() ? 1 : -1)
                                      : (int64_t)below(1000);
    int32_t plain = -7, fast = -7;
    double a = -7, b = -7;
    ifs_status status = counted(ifs_entropy_threshold(bins, num_bins, levels, 1, &plain, &a));
    CHECK(ifs_entropy_threshold(bins, num_bins, levels, 0, &fast, coin() ? &b : NULL) == status);
    if (status == IFS_OK) {
        CHECK(plain == fast && plain >= levels && plain <= num_bins);
        CHECK(b == -7 || a == b || fabs(a - b) <= 1e-9 * fabs(a) || (isinf(a) && isinf(b)));
    } else
        CHECK(plain == -7 && fast == -7);
    free(bins);
}

static void one_case(void) {
    switch (below(4)) {
    case 0:
        ranges();
        break;
    case 1:
        entropy();
        break;
    default:
        convert();
    }
}
