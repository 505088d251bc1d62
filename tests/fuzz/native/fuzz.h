/*
 * fuzz.h - the frame of a harness: cases by number, each made from the seed and its number alone.
 *
 *     PROGRAM SEED FIRST CASES SECONDS FOLDER
 *
 * runs the cases FIRST, FIRST + 1, ... until CASES are done or SECONDS have passed (0 is no limit). A failure prints
 * the number of its case; `PROGRAM SEED NUMBER 1 0 FOLDER` repeats it. The first line says how many cases ran, how many
 * calls the core accepted, and how many it refused. Each further line is an operation, how many results it gave, and
 * the sum of their hashes, which is the same for every platform that one compiler builds for: the order in which
 * arguments draw numbers is the compiler's.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include "rounds.h"

#include <string.h>
#include <time.h>

static unsigned long accepted, refused;
static const char *folder;

/* One case; what it draws by next() and below() is all that it depends on. */
static void one_case(void);

/* Counts a call's answer; every refusal comes with a message. */
static inline ifs_status counted(ifs_status status) {
    if (status == IFS_OK)
        accepted++;
    else {
        refused++;
        CHECK(ifs_last_error()[0] != '\0');
        CHECK(strcmp(ifs_status_text(status), "unknown status") != 0);
    }
    return status;
}

/* Sebastiano Vigna's splitmix64, 2015: neighbouring numbers give seeds that have nothing to do with one another. */
static inline uint64_t scattered(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Adds the result of an operation to the sum of its hashes. */
typedef struct results {
    const char *name;
    unsigned long count;
    uint64_t sum;
} results;

static results results_of[8];

static inline void digest(const char *name, const void *data, size_t nbytes) {
    results *r = results_of;
    while (r->name && strcmp(r->name, name) != 0)
        r++;
    CHECK(r + 1 < results_of + sizeof results_of / sizeof *results_of); /* the last one ends the list */
    uint64_t hash = scattered(round_number) ^ nbytes, word;
    for (size_t i = 0; i < nbytes; i += 8) {
        word = 0;
        memcpy(&word, (const char *)data + i, nbytes - i < 8 ? nbytes - i : 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    r->name = name;
    r->count++;
    r->sum += hash;
}

/* Memory of exactly `nbytes`, so that the address sanitizer sees the first byte beyond. */
static inline void *exact(size_t nbytes) {
    void *block = malloc(nbytes ? nbytes : 1);
    CHECK(block != NULL);
    return block;
}

static inline int coin(void) { return (int)below(2); }

/* Mostly small, now and then at a limit. */
static inline int32_t odd_number(int32_t small) {
    static const int32_t limits[] = {0,         -1,      1,          2,          255,
                                     256,       65535,   65536,      1 << 20,    (1 << 20) + 1,
                                     1 << 24,   1 << 29, 0x7FFFFFFF, 0x7FFFFFFE, -0x7FFFFFFF - 1,
                                     -2,        16383,   16384,      46341,      92682,
                                     0x40000000};
    return below(8) ? (int32_t)below((uint32_t)small) + 1 : limits[below(sizeof limits / sizeof *limits)];
}

/* Mostly an ordinary number, now and then NaN, infinite, huge, tiny or any bits. */
static inline float odd_float(void) {
    uint32_t bits;
    float x;
    switch (below(16)) {
    case 0: {
        static const uint32_t special[] = {0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF,
                                           0x00000001, 0x80000001, 0x00800000, 0x80000000, 0x7F800001, 0x33800000};
        bits = special[below(sizeof special / sizeof *special)];
        break;
    }
    case 1:
        bits = (uint32_t)next();
        break;
    case 2:
        return (float)below(4);
    case 3:
        return -(float)below(1000) / 8;
    default:
        return (float)(below(1 << 16)) / (1 << (below(17)));
    }
    memcpy(&x, &bits, 4);
    return x;
}

static inline double odd_double(void) {
    if (below(8))
        return odd_float();
    uint64_t bits = next();
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

#ifdef __SANITIZE_ADDRESS__
void __sanitizer_set_death_callback(void (*callback)(void)); /* sanitizer/common_interface_defs.h */

static void name_case(void) { fprintf(stderr, "a sanitizer's report: case %lu\n", round_number); }
#endif

int main(int argc, char **argv) {
    if (argc != 6)
        return 2;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_death_callback(name_case);
#endif
    uint64_t seed = strtoull(argv[1], NULL, 10);
    unsigned long first = strtoul(argv[2], NULL, 10), cases = strtoul(argv[3], NULL, 10), done = 0;
    double seconds = strtod(argv[4], NULL);
    folder = argv[5];
    struct timespec start, now;
    timespec_get(&start, TIME_UTC);
    for (; done < cases; done++) {
        if (seconds > 0 && done % 64 == 0) {
            timespec_get(&now, TIME_UTC);
            if ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) * 1e-9 >= seconds)
                break;
        }
        round_number = first + done;
        state = scattered(seed ^ scattered(round_number)) | 1;
        one_case();
    }
    ifs_memory_stats stats;
    ifs_get_memory_stats(&stats);
    CHECK(stats.host_bytes == 0 && stats.memories == 0);
    printf("%lu cases, %lu accepted, %lu refused\n", done, accepted, refused);
    for (const results *r = results_of; r->name; r++)
        printf("%s %lu %016llx\n", r->name, r->count, (unsigned long long)r->sum);
    return 0;
}

#endif
