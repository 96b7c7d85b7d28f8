/* Prints a random 96-bit nonce, or says that it has none. */
#include <inttypes.h>
#include <stdio.h>
#include <rdrand.h>

int main(void)
{
    uint8_t nonce[12];

    if (rdrand_testSupport() != RDRAND_SUPPORTED) {
        fputs("nonce: this processor has no RDRAND that works\n", stderr);
        return 1;
    }
    /* A negative limit is the default of 10 attempts a value. */
    if (rdrand_get_bytes_retry(nonce, sizeof nonce, -1) != sizeof nonce) {
        fputs("nonce: the hardware ran dry\n", stderr);
        return 1;
    }
    for (size_t i = 0; i < sizeof nonce; i++)
        printf("%02" PRIx8, nonce[i]);
    putchar('\n');
    return 0;
}
