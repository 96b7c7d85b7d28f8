/* Loads copies of librdrand as a plug-in would, uses each in threads that are older and younger
 * than the library, unloads and loads again. Prints the Test Anything Protocol.
 *
 *     dlopen LIBRARY...
 *
 * A library that is loaded so late finds its thread-local storage in what the C library has set
 * aside for that, in threads that run already as well.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef size_t draw_function(uint64_t *, size_t, int);

static draw_function *volatile draw;
static pthread_barrier_t loaded;

static int draws(void) {
    uint64_t values[65] = {0};
    return draw(values, 1, -1) == 1 && draw(values + 1, 64, -1) == 64 && values[0] != 0 &&
           values[0] != values[1] && values[63] != values[64];
}

static void *younger(void *unused) {
    (void)unused;
    return draws() ? (void *)&loaded : NULL;
}

static void *older(void *unused) {
    (void)unused;
    pthread_barrier_wait(&loaded);
    return younger(NULL);
}

static int load_and_draw(const char *path, void **library) {
    pthread_t old, young;
    void *old_good = NULL, *young_good = NULL;
    pthread_barrier_init(&loaded, NULL, 2);
    pthread_create(&old, NULL, older, NULL);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library == NULL) {
        printf("Bail out! %s\n", dlerror());
        exit(1);
    }
    draw = (draw_function *)(uintptr_t)dlsym(*library, "rdrand_get_uint64_array_retry");
    pthread_barrier_wait(&loaded);
    pthread_create(&young, NULL, younger, NULL);
    int good = draws();
    pthread_join(old, &old_good);
    pthread_join(young, &young_good);
    return good && old_good != NULL && young_good != NULL;
}

int main(int count, char **paths) {
    void *libraries[64] = {0};
    int failures = 0, tests = 0;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("rdrnd")) {
        printf("1..0 # SKIP no RDRAND here\n");
        return 0;
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 1; i < count && i < 64; i++) {
            int good = load_and_draw(paths[i], &libraries[i]);
            failures += !good;
            printf("%sok %d - copy %d, round %d\n", good ? "" : "not ", ++tests, i, round);
        }
        for (int i = 1; i < count && i < 64; i++)
            if (libraries[i] != NULL) dlclose(libraries[i]);
    }
    printf("1..%d\n", tests);
    return failures != 0;
}
