/* A program as the users of the librdrand of 2013 wrote it: its headers, and its way of testing
 * for failure. Prints 64 encrypted bytes in hexadecimal; an argument asks for a failure.
 */
#include <librdrand.h>
#include <librdrand-aes.h>
#include <string.h>

static unsigned char key[32], nonce[16];

int main(int count, char **arguments) {
    unsigned char *keys[] = {key}, *nonces[] = {nonce};
    unsigned char bytes[64], encrypted[64];
    const char *how = count > 1 ? arguments[1] : "";

    if (rdrand_testSupport() == RDRAND_UNSUPPORTED && strcmp(how, "no-rdrand") != 0) {
        fputs("no RDRAND here\n", stderr);
        return 77;
    }
    if (strcmp(how, "no-key") != 0) {
        size_t length = strcmp(how, "bad-key") == 0 ? 15 : 32;
        if (!rdrand_set_aes_keys(1, length, keys, nonces)) return EXIT_FAILURE;
        if (strcmp(how, "no-keys") == 0 && !rdrand_set_aes_keys(0, 32, keys, nonces))
            return EXIT_FAILURE;
        if (strcmp(how, "set-keys") != 0 && !rdrand_set_aes_random_key()) return EXIT_FAILURE;
    }
    if (strcmp(how, "no-key") != 0 &&
        rdrand_get_bytes_aes_ctr(bytes, sizeof bytes, -1) != sizeof bytes)
        return EXIT_FAILURE;
    if (!rdrand_enc_buffer(encrypted, bytes, sizeof bytes)) return EXIT_FAILURE;
    rdrand_clean_aes();
    for (size_t i = 0; i < sizeof encrypted; i++) printf("%02x", encrypted[i]);
    puts("");
    return EXIT_SUCCESS;
}
