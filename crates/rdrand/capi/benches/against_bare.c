/*
 * Pairs of (bare instruction loop, library call) over the same number of quadwords, next to each
 * other in one thread and in alternating order. Prints one line a pair:
 *
 *     FUNCTION QUADWORDS BARE_NS LIBRARY_NS
 *
 * in nanoseconds of the thread's processor time, because other programs share the machine.
 * against_bare.rs compiles it against both libraries and makes a table of what it prints.
 */
#include <rdrand.h>
#include <stdlib.h>
#include <time.h>

/* Quadwords drawn for one side of one pair, about 1.2 ms. */
enum { QUADWORDS_A_SIDE = 32768, QUADWORDS_MAX = 2048 };

static uint64_t bare_values[QUADWORDS_MAX], library_values[QUADWORDS_MAX];

static double processor_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Makes the compiler forget what it knows of a pointer and of the memory behind it. */
static inline uint64_t *opaque(uint64_t *values) {
    __asm__ volatile("" : "+r"(values) : : "memory");
    return values;
}

/* The limit: the instruction, its retry, the store and the loop, inlined and nothing else. */
static inline void bare_loop(uint64_t *values, size_t quadwords) {
    for (size_t i = 0; i < quadwords; i++) {
        uint64_t value;
        __asm__ volatile("1: rdrand %0\n\tjnc 1b" : "=r"(value) : : "cc");
        values[i] = value;
    }
}

static double bare_ns(size_t quadwords) {
    size_t calls = QUADWORDS_A_SIDE / quadwords;
    double start = processor_ns();
    for (size_t i = 0; i < calls; i++) bare_loop(opaque(bare_values), quadwords);
    return processor_ns() - start;
}

#define LIBRARY(NAME, CALL, EXPECTED)                                                  \
    static double NAME##_ns(size_t quadwords) {                                        \
        size_t calls = QUADWORDS_A_SIDE / quadwords, good = 0;                         \
        double start = processor_ns();                                                 \
        for (size_t i = 0; i < calls; i++) {                                           \
            uint64_t *values = opaque(library_values);                                 \
            good += (size_t)(CALL) == (size_t)(EXPECTED);                              \
        }                                                                              \
        double spent = processor_ns() - start;                                         \
        if (good != calls) {                                                           \
            fputs(#NAME " did not deliver\n", stderr);                                 \
            exit(2);                                                                   \
        }                                                                              \
        return spent;                                                                  \
    }

LIBRARY(rdrand_get_bytes_retry, rdrand_get_bytes_retry(values, quadwords * 8, -1), quadwords * 8)
LIBRARY(rdrand_get_uint64_array_retry, rdrand_get_uint64_array_retry(values, quadwords, -1),
        quadwords)
LIBRARY(rdrand_get_uint64_retry, rdrand_get_uint64_retry(values, -1), RDRAND_SUCCESS)

static void compare(const char *name, double (*library)(size_t), size_t quadwords, long rounds) {
    for (long round = -2; round < rounds; round++) {
        double bare, other;
        if (round % 2 == 0) {
            bare = bare_ns(quadwords);
            other = library(quadwords);
        } else {
            other = library(quadwords);
            bare = bare_ns(quadwords);
        }
        /* The first pair of each order warms up. */
        if (round >= 0) printf("%s %zu %.0f %.0f\n", name, quadwords, bare, other);
    }
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {1, 2, 3, 5, 8, 2048};
    long rounds = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
    if (rounds <= 0) {
        fputs("usage: against_bare ROUNDS\n", stderr);
        return 2;
    }
    if (rdrand_testSupport() != RDRAND_SUPPORTED) {
        fputs("no RDRAND here\n", stderr);
        return 3;
    }
    compare("rdrand_get_uint64_retry", rdrand_get_uint64_retry_ns, 1, rounds);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        compare("rdrand_get_uint64_array_retry", rdrand_get_uint64_array_retry_ns, sizes[i], rounds);
        compare("rdrand_get_bytes_retry", rdrand_get_bytes_retry_ns, sizes[i], rounds);
    }
    return 0;
}
