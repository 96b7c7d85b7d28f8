/*
 * librdrand: random numbers from the RDRAND instruction that fail loudly.
 *
 * Licensed under MIT OR Apache-2.0. Manual: librdrand(3).
 *
 * Common to all functions:
 *
 *  - They may be called by any number of threads at once. They are not for signal handlers.
 *  - retry_limit is the number of attempts that one value may take. A negative one means
 *    10; 0 means 1. RDRAND of a sound processor does not run dry in 10 attempts.
 *  - Sizes and counts are size_t throughout. A NULL pointer is refused: the function fails
 *    or returns 0. Arrays need no alignment.
 *  - Before its first number each thread tests the hardware. All numbers pass the repetition
 *    count and adaptive proportion tests of NIST SP 800-90B. When one fails, the memory of
 *    the call is zeroed and the function fails or returns 0; the next call tests anew.
 *  - Where there is no RDRAND every function fails or returns 0. Nothing is ever replaced by
 *    weaker numbers.
 */
#ifndef LIBRDRAND_RDRAND_H
#define LIBRDRAND_RDRAND_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The number or numbers were delivered. */
#define RDRAND_SUCCESS 1
/** The number or numbers were not delivered. */
#define RDRAND_FAILURE (-1)
/** RDRAND is there and passed its self-test. */
#define RDRAND_SUPPORTED 2
/** RDRAND is not there, is hidden, or failed its self-test. */
#define RDRAND_UNSUPPORTED (-2)

/** Whether RDRAND can be used: RDRAND_SUPPORTED or RDRAND_UNSUPPORTED. */
int rdrand_testSupport(void);

/*
 * One attempt at one value of 16, 32 or 64 bits.
 * Return RDRAND_SUCCESS, or RDRAND_FAILURE with *x left alone.
 */
/** One attempt at 16 bits. */
int rdrand16_step(uint16_t *x);
/** One attempt at 32 bits. */
int rdrand32_step(uint32_t *x);
/** One attempt at 64 bits. */
int rdrand64_step(uint64_t *x);

/*
 * One value in at most retry_limit attempts.
 * Return RDRAND_SUCCESS, or RDRAND_FAILURE with *dest left alone.
 */
/** 16 bits. */
int rdrand_get_uint16_retry(uint16_t *dest, int retry_limit);
/** 32 bits. */
int rdrand_get_uint32_retry(uint32_t *dest, int retry_limit);
/** 64 bits. */
int rdrand_get_uint64_retry(uint64_t *dest, int retry_limit);

/*
 * An array of count elements, drawn 64 bits at a time.
 * Return the number of ELEMENTS written. Fewer than count means that the hardware ran dry;
 * the elements after those are left alone.
 */
/** 8-bit elements. */
size_t rdrand_get_uint8_array_retry(uint8_t *dest, size_t count, int retry_limit);
/** 16-bit elements. */
size_t rdrand_get_uint16_array_retry(uint16_t *dest, size_t count, int retry_limit);
/** 32-bit elements. */
size_t rdrand_get_uint32_array_retry(uint32_t *dest, size_t count, int retry_limit);
/** 64-bit elements. */
size_t rdrand_get_uint64_array_retry(uint64_t *dest, size_t count, int retry_limit);

/** Fills size bytes; returns the number of bytes written. */
size_t rdrand_get_bytes_retry(void *dest, size_t size, int retry_limit);

/**
 * Writes count random bytes to a stream and flushes it.
 * Returns the number of bytes that are known to have arrived, in steps of 16 KiB; fewer than
 * count means that the stream failed (ferror, errno) or that the hardware ran dry.
 */
size_t rdrand_fwrite(FILE *f, size_t count, int retry_limit);

/**
 * Values with at least 20 microseconds before each draw, in which the hardware reseeds its
 * generator, unless other processors keep drawing. Returns the number of elements written.
 */
size_t rdrand_get_uint64_array_reseed_delay(uint64_t *dest, size_t count, int retry_limit);

/**
 * Values kept one of 1025, so that a reseed of the hardware generator lies between any two,
 * whatever other processors do. Returns the number of elements written.
 */
size_t rdrand_get_uint64_array_reseed_skip(uint64_t *dest, size_t count, int retry_limit);

/*
 * RDRAND and AES in counter mode together: to predict the output takes the key as well as the
 * hardware. Keys belong to the process, are wiped when replaced or cleaned, and never encrypt the
 * same counter twice, in a child process after fork() neither.
 *
 * Those of these functions that return int return 1 (true) or 0, NOT RDRAND_FAILURE, as in the
 * librdrand of 2013: test them with if (!rdrand_...()).
 */

/**
 * Sets keys: amount of them, each of key_length bytes (16, 24 or 32), each with a nonce of
 * half that length. They are copied, and take turns every 4096 bytes.
 * Returns 1 if they are set, 0 if not, with the keys of before left in place.
 */
int rdrand_set_aes_keys(unsigned int amount, size_t key_length, unsigned char **keys,
                        unsigned char **nonces);

/**
 * Sets a random 256-bit key, made of RDSEED (or condensed RDRAND) combined with random bytes of
 * the operating system, and replaces it after each MiB.
 * Returns 1 if it is set, 0 if not, with the keys of before left in place.
 */
int rdrand_set_aes_random_key(void);

/**
 * Fills count bytes: with keys that were set, RDRAND encrypted; with a random key, blocks of 96
 * bits of RDRAND and a counter, encrypted.
 * Returns the number of bytes written, 0 without a key.
 */
size_t rdrand_get_bytes_aes_ctr(void *dest, size_t count, int retry_limit);

/**
 * Encrypts len bytes of src into dest with the next keystream, which starts at a new block of
 * 16 bytes with each call. dest and src may be the same or overlap.
 * Returns 1, or 0 with dest zeroed or left alone.
 */
int rdrand_enc_buffer(void *dest, void *src, size_t len);

/** Wipes the keys. */
void rdrand_clean_aes(void);

#ifdef __cplusplus
}
#endif

#endif /* LIBRDRAND_RDRAND_H */
