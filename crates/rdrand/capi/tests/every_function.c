/* Calls every function of rdrand.h and prints the Test Anything Protocol. Also valid C++.
 * Its argument names a file that it may write. */
#include <errno.h>
#include <pthread.h>
#include <rdrand.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int tests, failures;
static const char *scratch;

static void ok(int good, const char *what) {
    tests++;
    failures += !good;
    printf("%sok %d - %s\n", good ? "" : "not ", tests, what);
}

static int all_zero(const void *memory, size_t size) {
    const unsigned char *bytes = (const unsigned char *)memory;
    while (size > 0 && bytes[size - 1] == 0) size--;
    return size == 0;
}

/* Whether any 8 bytes in a row are zero; true by chance once in 2^64. */
static int has_zero_block(const unsigned char *bytes, size_t size) {
    for (size_t i = 0; i + 8 <= size; i += 8)
        if (all_zero(bytes + i, 8)) return 1;
    return 0;
}

static void single_values(void) {
    uint16_t v16 = 0;
    uint32_t v32 = 0;
    uint64_t v64 = 0;
    int good = 1, seen16 = 0, seen32 = 0, seen64 = 0;
    for (int i = 0; i < 100; i++) {
        good &= rdrand16_step(&v16) != 0 && rdrand32_step(&v32) != 0 && rdrand64_step(&v64) != 0;
        seen16 |= v16, seen32 |= v32 != 0, seen64 |= v64 != 0;
    }
    ok(good && seen16 && seen32 && seen64, "rdrandNN_step deliver");
    ok(rdrand16_step(NULL) == RDRAND_FAILURE && rdrand32_step(NULL) == RDRAND_FAILURE &&
           rdrand64_step(NULL) == RDRAND_FAILURE,
       "rdrandNN_step refuse NULL");
    good = 1;
    for (int limit = -3; limit < 20; limit++) {
        if (limit == 0 || limit == 1) continue; /* a single attempt may fail by right */
        good &= rdrand_get_uint16_retry(&v16, limit) == RDRAND_SUCCESS;
        good &= rdrand_get_uint32_retry(&v32, limit) == RDRAND_SUCCESS;
        good &= rdrand_get_uint64_retry(&v64, limit) == RDRAND_SUCCESS;
    }
    ok(good, "rdrand_get_uintNN_retry deliver with any limit");
    ok(rdrand_get_uint16_retry(NULL, -1) == RDRAND_FAILURE &&
           rdrand_get_uint32_retry(NULL, -1) == RDRAND_FAILURE &&
           rdrand_get_uint64_retry(NULL, -1) == RDRAND_FAILURE,
       "rdrand_get_uintNN_retry refuse NULL");
}

#define ARRAY(TYPE, FUNCTION, COUNT)                                                        \
    do {                                                                                    \
        TYPE values[COUNT + 1];                                                             \
        memset(values, 0, sizeof values);                                                   \
        ok(FUNCTION(values, COUNT, -1) == COUNT &&                                          \
               !has_zero_block((unsigned char *)values, COUNT * sizeof(TYPE)) &&            \
               all_zero(&values[COUNT], sizeof(TYPE)),                                      \
           #FUNCTION " returns elements and writes exactly those");                         \
        ok(FUNCTION(NULL, COUNT, -1) == 0 && FUNCTION(values, 0, -1) == 0 &&                \
               FUNCTION(values, (size_t)-1, -1) == 0,                                       \
           #FUNCTION " refuses NULL, nothing and impossible sizes");                        \
    } while (0)

static void arrays(void) {
    ARRAY(uint8_t, rdrand_get_uint8_array_retry, 1003);
    ARRAY(uint16_t, rdrand_get_uint16_array_retry, 1003);
    ARRAY(uint32_t, rdrand_get_uint32_array_retry, 1003);
    ARRAY(uint64_t, rdrand_get_uint64_array_retry, 1003);
    ARRAY(uint64_t, rdrand_get_uint64_array_reseed_delay, 20);
    ARRAY(uint64_t, rdrand_get_uint64_array_reseed_skip, 20);
    ARRAY(unsigned char, rdrand_get_bytes_retry, 3705);
    int good = 1;
    for (size_t offset = 0; offset < 16; offset++) {
        unsigned char memory[64] = {0};
        good &= rdrand_get_bytes_retry(memory + offset, 16, -1) == 16;
        good &= all_zero(memory, offset) && all_zero(memory + offset + 16, 48 - offset);
        good &= !all_zero(memory + offset, 8) && !all_zero(memory + offset + 8, 8);
    }
    ok(good, "rdrand_get_bytes_retry fills at any alignment and nothing else");
}

static void files(void) {
    size_t size = 100003;
    unsigned char *bytes = (unsigned char *)malloc(size);
    FILE *file = fopen(scratch, "w+");
    if (file == NULL) {
        perror(scratch);
        exit(2);
    }
    ok(rdrand_fwrite(file, size, -1) == size && ftell(file) == (long)size,
       "rdrand_fwrite writes what it says");
    rewind(file);
    ok(fread(bytes, 1, size, file) == size && fgetc(file) == EOF && !has_zero_block(bytes, size),
       "rdrand_fwrite writes random bytes");
    fclose(file);
    file = fopen("/dev/full", "w");
    ok(file == NULL || rdrand_fwrite(file, size, -1) == 0, "rdrand_fwrite reports a full disk");
    ok(file == NULL || errno == ENOSPC, "rdrand_fwrite leaves the reason in errno");
    if (file != NULL) fclose(file);
    file = fopen("/dev/null", "r");
    ok(rdrand_fwrite(file, size, -1) == 0, "rdrand_fwrite reports a stream that is not for writing");
    fclose(file);
    ok(rdrand_fwrite(NULL, size, -1) == 0, "rdrand_fwrite refuses NULL");
    free(bytes);
}

static void encrypted(void) {
    unsigned char key[32], nonce[16], zeros[64] = {0}, first[64], second[64];
    unsigned char *keys[1] = {key}, *nonces[1] = {nonce}, *missing[1] = {NULL};
    memset(key, 1, sizeof key);
    memset(nonce, 2, sizeof nonce);
    rdrand_clean_aes();
    ok(rdrand_get_bytes_aes_ctr(first, 64, -1) == 0 &&
           rdrand_enc_buffer(first, zeros, 64) == 0,
       "nothing is encrypted without a key");
    ok(rdrand_set_aes_keys(1, 15, keys, nonces) == 0 &&
           rdrand_set_aes_keys(0, 16, keys, nonces) == 0 &&
           rdrand_set_aes_keys(1, 16, NULL, nonces) == 0 &&
           rdrand_set_aes_keys(1, 16, keys, missing) == 0,
       "rdrand_set_aes_keys refuses what is not a key");
    for (size_t length = 16; length <= 32; length += 8) {
        int good = rdrand_set_aes_keys(1, length, keys, nonces) == 1;
        good &= rdrand_enc_buffer(first, zeros, 64) == 1;
        good &= rdrand_enc_buffer(second, zeros, 64) == 1;
        ok(good && memcmp(first, second, 64) != 0, "rdrand_enc_buffer moves on");
        good = rdrand_set_aes_keys(1, length, keys, nonces) == 1;
        good &= rdrand_enc_buffer(first, first, 64) == 1;
        ok(good && all_zero(first, 64), "rdrand_enc_buffer decrypts, in place");
        unsigned char random[5000] = {0};
        ok(rdrand_get_bytes_aes_ctr(random, 4999, -1) == 4999 && random[4999] == 0 &&
               !has_zero_block(random, 4999),
           "rdrand_get_bytes_aes_ctr fills with set keys");
    }
    ok(rdrand_set_aes_random_key() == 1, "rdrand_set_aes_random_key");
    ok(rdrand_get_bytes_aes_ctr(first, 64, -1) == 64 && !has_zero_block(first, 64),
       "rdrand_get_bytes_aes_ctr fills with a random key");
    ok(rdrand_get_bytes_aes_ctr(NULL, 64, -1) == 0 &&
           rdrand_enc_buffer(NULL, zeros, 64) == 0 &&
           rdrand_enc_buffer(first, NULL, 64) == 0,
       "the AES functions refuse NULL");

    rdrand_set_aes_keys(1, 32, keys, nonces);
    int channel[2];
    if (pipe(channel) != 0) exit(2);
    fflush(stdout);
    pid_t child = fork();
    rdrand_enc_buffer(first, zeros, 64);
    if (child == 0) _exit(write(channel[1], first, 64) != 64);
    int good = read(channel[0], second, 64) == 64 && memcmp(first, second, 64) != 0;
    int status = 1;
    waitpid(child, &status, 0);
    ok(good && status == 0, "parent and child encrypt with different keystream");
    rdrand_clean_aes();
    ok(rdrand_get_bytes_aes_ctr(first, 64, -1) == 0, "rdrand_clean_aes takes the key away");
}

static void *thread(void *unused) {
    uint64_t values[64];
    unsigned char bytes[64];
    (void)unused;
    if (rdrand_get_uint64_array_retry(values, 64, -1) != 64) return NULL;
    return rdrand_get_bytes_aes_ctr(bytes, 64, -1) == 64 ? (void *)&tests : NULL;
}

static void threads(void) {
    pthread_t all[200];
    int good = rdrand_set_aes_random_key() == 1, made = 0;
    while (made < 200 && pthread_create(&all[made], NULL, thread, NULL) == 0) made++;
    for (int i = 0; i < made; i++) {
        void *result = NULL;
        good &= pthread_join(all[i], &result) == 0 && result != NULL;
    }
    ok(good && made == 200, "200 threads draw at once");
    rdrand_clean_aes();
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    scratch = arguments[1];
    if (rdrand_testSupport() == RDRAND_UNSUPPORTED) {
        uint64_t value = 7;
        ok(rdrand_get_uint64_retry(&value, -1) == RDRAND_FAILURE && value == 7 &&
               rdrand_get_bytes_retry(&value, 8, -1) == 0 && !rdrand_set_aes_random_key() &&
               rdrand_get_bytes_aes_ctr(&value, 8, -1) == 0,
           "without RDRAND everything fails");
        printf("1..%d # SKIP the rest: no RDRAND here\n", tests);
        return failures != 0;
    }
    ok(rdrand_testSupport() == RDRAND_SUPPORTED, "rdrand_testSupport");
    single_values();
    arrays();
    files();
    encrypted();
    threads();
    printf("1..%d\n", tests);
    return failures != 0;
}
