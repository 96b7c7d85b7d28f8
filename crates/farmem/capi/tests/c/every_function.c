/*
 * Calls every function of the library against a node, as a stranger would, and says so in lines of
 * the Test Anything Protocol.
 *
 *   every_function NODE SILENT STOPPED SECRET CAPABILITY SPACE
 *
 * NODE serves. SECRET serves clients with a capability, such as that of SPACE. SILENT receives and
 * never answers. STOPPED serves until this program has written "stop" and reads a line.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tare_farmem.h"

#define MS ((uint64_t)1000000)
#define SECOND (1000 * MS)

static int number = 0;
static int failures = 0;

static void check(int good, const char *what, int line)
{
    char message[256];

    number++;
    if (!good) {
        failures++;
        tfm_last_message(message, sizeof(message));
        printf("# line %d, last failure: %s\n", line, message);
    }
    printf("%s %d - %s\n", good ? "ok" : "not ok", number, what);
    fflush(stdout);
}

#define CHECK(good, what) check((good) ? 1 : 0, what, __LINE__)
#define IS(call, status) check((call) == (status), #call " is " #status, __LINE__)

static tfm_session *open_with(const char *node, uint64_t space, const char *capability,
                              uint64_t timeout)
{
    tfm_options options = TFM_OPTIONS_INIT;
    tfm_session *session = NULL;

    options.timeout_ns = timeout;
    if (tfm_connect(node, space, capability, &options, &session) != TFM_OK) {
        CHECK(0, "a session");
        exit(1);
    }
    return session;
}

static tfm_session *open_session(const char *node, uint64_t space, uint64_t timeout)
{
    return open_with(node, space, NULL, timeout);
}

static void the_library(void)
{
    tfm_error error;
    char text[8];
    size_t len;

    IS(tfm_last_error(&error), TFM_OK);
    CHECK(error.status == 0 && error.address == 0, "no failure yet");
    CHECK(strcmp(tfm_version(), TFM_VERSION) == 0, "header and library have one version");
    CHECK(strcmp(tfm_strerror(TFM_OK), "success") == 0, "the sentence of success");
    CHECK(strstr(tfm_strerror(TFM_LOCKED), "lock") != NULL, "the sentence of a lock");
    CHECK(strstr(tfm_strerror(12345), "unknown") != NULL, "the sentence of an unknown code");
    IS(tfm_disconnect(NULL), TFM_OK);
    IS(tfm_open(NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_last_error(NULL), TFM_INVALID_ARGUMENT);
    len = tfm_last_message(NULL, 0);
    CHECK(len > 7 && tfm_last_message(text, sizeof(text)) == len, "the length of a message");
    CHECK(strcmp(text, "the ses") == 0, "a message is cut to the buffer");
}

static void connecting(const char *node)
{
    struct { tfm_options options; uint64_t newer; } longer;
    tfm_options options = TFM_OPTIONS_INIT;
    tfm_session *session = NULL, *other = NULL;
    char *long_address;
    uint64_t space = 0, other_space = 0, id = 0;

    IS(tfm_connect(NULL, 0, NULL, NULL, &session), TFM_INVALID_ARGUMENT);
    IS(tfm_connect(node, 0, NULL, NULL, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_connect("", 0, NULL, NULL, &session), TFM_ADDRESS);
    IS(tfm_connect("udp://127.0.0.1", 0, NULL, NULL, &session), TFM_ADDRESS);
    IS(tfm_connect("smoke://127.0.0.1:1", 0, NULL, NULL, &session), TFM_ADDRESS);
    IS(tfm_connect("udp://\377\376:1", 0, NULL, NULL, &session), TFM_ADDRESS);
    long_address = (char *)malloc(4096);
    memset(long_address, 'a', 4095);
    long_address[4095] = 0;
    IS(tfm_connect(long_address, 0, NULL, NULL, &session), TFM_INVALID_ARGUMENT);
    free(long_address);
    IS(tfm_connect(node, 0, "no capability", NULL, &session), TFM_CAPABILITY);
    options.size = 4;
    IS(tfm_connect(node, 0, NULL, &options, &session), TFM_INVALID_ARGUMENT);
    memset(&longer, 0, sizeof(longer));
    longer.options.size = sizeof(longer);
    longer.newer = 1;
    IS(tfm_connect(node, 0, NULL, &longer.options, &session), TFM_UNSUPPORTED);
    CHECK(session == NULL, "a failure stores no session");

    longer.newer = 0;
    longer.options.operations_max = 1;
    longer.options.busy_ns = TFM_FOREVER;
    IS(tfm_connect(node, 0, NULL, &longer.options, &session), TFM_OK);
    IS(tfm_connect(node, 77, NULL, NULL, &other), TFM_OK);
    IS(tfm_space(session, &space), TFM_OK);
    IS(tfm_space(other, &other_space), TFM_OK);
    CHECK(space != 0 && other_space == 77, "spaces are random or as given");
    IS(tfm_space(session, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_submit_read(session, 0x1000, 8, &id), TFM_OK);
    IS(tfm_submit_read(session, 0x1000, 8, &id), TFM_FULL);

    IS(tfm_disconnect(session), TFM_OK);
    IS(tfm_disconnect(session), TFM_CLOSED);
    IS(tfm_space(session, &space), TFM_CLOSED);
    IS(tfm_space((tfm_session *)&options, &space), TFM_CLOSED);
    IS(tfm_disconnect((tfm_session *)&options), TFM_CLOSED);
    IS(tfm_disconnect(other), TFM_OK);
}

static void memory(tfm_session *session)
{
    static unsigned char large[300000], again[300000];
    unsigned char *misaligned = large + 1;
    uint64_t address = 0, at = 0x7000000, sparse = 0, read_only = 0, old = 1, token = 0, next = 0;
    uint64_t round_trip = 0;
    tfm_error error;
    tfm_guard guard;
    size_t i;

    IS(tfm_ping(session, &round_trip), TFM_OK);
    CHECK(round_trip > 0 && round_trip < 60 * SECOND, "a ping takes time");
    IS(tfm_alloc(session, 4096, &address), TFM_NO_SUCH_SPACE);
    IS(tfm_open(session), TFM_OK);
    IS(tfm_open(session), TFM_OK);

    IS(tfm_alloc(session, sizeof(large), &address), TFM_OK);
    CHECK(address != 0 && address % 4096 == 0, "an address of a page");
    memset(again, 1, sizeof(again));
    IS(tfm_read(session, address, again, sizeof(again)), TFM_OK);
    for (i = 0; i < sizeof(again) && again[i] == 0; i++) {
    }
    CHECK(i == sizeof(again), "new memory reads as zero");
    for (i = 0; i < sizeof(large); i++) {
        large[i] = (unsigned char)(i * 31 + i / 256);
    }
    IS(tfm_write(session, address + 3, misaligned, sizeof(large) - 100, NULL), TFM_OK);
    IS(tfm_read(session, address + 3, again + 5, sizeof(large) - 100), TFM_OK);
    CHECK(memcmp(again + 5, misaligned, sizeof(large) - 100) == 0, "what was written is read");
    CHECK(again[4] == 0 && again[sizeof(large) - 95] == 0, "and no byte more");

    IS(tfm_alloc(session, 0, &address), TFM_LENGTH);
    IS(tfm_alloc(session, 4096, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_alloc(session, (uint64_t)1 << 29, &old), TFM_QUOTA);
    IS(tfm_alloc_at(session, at, 8192), TFM_OK);
    IS(tfm_alloc_at(session, at + 4096, 4096), TFM_OVERLAP);
    tfm_last_error(&error);
    CHECK(error.status == TFM_OVERLAP && error.address == at + 4096, "where it overlaps");
    IS(tfm_alloc_at(session, at + 1, 4096), TFM_MISALIGNED);
    tfm_last_error(&error);
    CHECK(error.multiple == 4096 && error.address == 0, "the alignment");
    IS(tfm_alloc_with(session, (uint64_t)1 << 34, TFM_PAGE_SMALL, TFM_READ_WRITE, 1, NULL, &sparse),
       TFM_OK);
    IS(tfm_write(session, sparse + ((uint64_t)1 << 33), "x", 1, NULL), TFM_OK);
    IS(tfm_alloc_with(session, 4096, TFM_PAGE_SMALL, TFM_READ, 0, NULL, &read_only), TFM_OK);
    IS(tfm_write(session, read_only, "x", 1, NULL), TFM_PERMISSION);
    tfm_last_error(&error);
    CHECK(error.address == read_only, "where there is no permission");
    IS(tfm_alloc_with(session, 4096, 3, TFM_READ, 0, NULL, &old), TFM_INVALID_ARGUMENT);
    IS(tfm_alloc_with(session, 4096, -1, TFM_READ, 0, NULL, &old), TFM_INVALID_ARGUMENT);
    IS(tfm_alloc_with(session, 4096, 0, 0, 0, NULL, &old), TFM_INVALID_ARGUMENT);
    IS(tfm_alloc_with(session, 4096, 0, 257, 0, NULL, &old), TFM_INVALID_ARGUMENT);
    IS(tfm_alloc_with(session, 4096, 0, TFM_READ, 2, NULL, &old), TFM_INVALID_ARGUMENT);
    next = 0x8000000;
    IS(tfm_alloc_with(session, 4096, TFM_PAGE_SMALL, TFM_READ_WRITE, 0, &next, &old), TFM_OK);
    CHECK(old == next, "the address that was asked for");

    memset(again, 9, 16);
    IS(tfm_read(session, 0x123456000, again, 16), TFM_UNMAPPED);
    tfm_last_error(&error);
    CHECK(error.address == 0x123456000, "where there is no memory");
    CHECK(again[0] == 9 && again[15] == 9, "a read that fails leaves the buffer as it was");
    IS(tfm_read(session, at, again, 0), TFM_LENGTH);
    IS(tfm_read(session, at, NULL, 16), TFM_INVALID_ARGUMENT);
    IS(tfm_read(session, at, again, TFM_LEN_MAX + 1), TFM_TOO_LONG);
    IS(tfm_read(session, at, again, (size_t)-1), TFM_TOO_LONG);
    IS(tfm_read(session, (uint64_t)-8, again, 16), TFM_TOO_LONG);
    IS(tfm_write(session, at, NULL, 16, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_write(session, at, again, (size_t)-1, NULL), TFM_TOO_LONG);

    IS(tfm_cas(session, at, 0, 41, NULL, &old), TFM_OK);
    CHECK(old == 0, "a swap that happened");
    IS(tfm_cas(session, at, 0, 99, NULL, &old), TFM_OK);
    CHECK(old == 41, "a swap that did not");
    IS(tfm_fetch_add(session, at, (uint64_t)-1, NULL, &old), TFM_OK);
    IS(tfm_fetch_add(session, at, 0, NULL, &old), TFM_OK);
    CHECK(old == 40, "a sum that wraps around");
    IS(tfm_cas(session, at + 4, 0, 1, NULL, &old), TFM_MISALIGNED);
    tfm_last_error(&error);
    CHECK(error.multiple == 8, "values have an alignment of 8");
    IS(tfm_cas(session, at, 0, 0, NULL, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_fetch_add(session, at, 0, NULL, NULL), TFM_INVALID_ARGUMENT);

    guard.lock = at + 64;
    IS(tfm_lock(session, guard.lock, 0, 0, &token), TFM_LEASE);
    IS(tfm_lock(session, guard.lock, 3601 * SECOND, 0, &token), TFM_LEASE);
    IS(tfm_lock(session, guard.lock, 600 * SECOND, 0, &token), TFM_OK);
    IS(tfm_lock(session, guard.lock, 600 * SECOND, 0, &next), TFM_LOCKED);
    tfm_last_error(&error);
    CHECK(error.retry_after_ns > 0 && error.retry_after_ns <= 600 * SECOND, "when to try again");
    memset(&error, 0, sizeof(error));
    IS(tfm_lock(session, guard.lock, SECOND, 3 * MS, &next), TFM_LOCKED);
    tfm_last_error(&error);
    CHECK(error.retry_after_ns > 0 && error.retry_after_ns <= 600 * SECOND,
          "when to try again, after some patience");
    guard.token = token;
    IS(tfm_write(session, at + 8, "guarded", 8, &guard), TFM_OK);
    IS(tfm_cas(session, at, 40, 7, &guard, &old), TFM_OK);
    IS(tfm_fetch_add(session, at, 1, &guard, &old), TFM_OK);
    IS(tfm_unlock(session, guard.lock, token), TFM_OK);
    IS(tfm_unlock(session, guard.lock, token), TFM_STALE_TOKEN);
    IS(tfm_write(session, at + 8, "stale!!", 8, &guard), TFM_STALE_TOKEN);
    IS(tfm_cas(session, at, 8, 0, &guard, &old), TFM_STALE_TOKEN);
    IS(tfm_fetch_add(session, at, 1, &guard, &old), TFM_STALE_TOKEN);
    IS(tfm_lock(session, guard.lock, MS, 0, &next), TFM_OK);
    CHECK(next > token, "tokens grow");
    /* Until the lease is over, after a millisecond. */
    IS(tfm_lock(session, guard.lock, SECOND, 60 * SECOND, &token), TFM_OK);
    CHECK(token > next, "a lease ends by itself");
    IS(tfm_lock(session, guard.lock, SECOND, 0, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_read(session, at, again, 16), TFM_OK);
    CHECK(again[0] == 8 && memcmp(again + 8, "guarded", 8) == 0, "what the guarded ones did");
    IS(tfm_fence(session), TFM_OK);

    IS(tfm_free(session, at + 4096, 4096), TFM_OK);
    IS(tfm_read(session, at + 4096, again, 1), TFM_UNMAPPED);
    IS(tfm_read(session, at, again, 1), TFM_OK);
    IS(tfm_free(session, at + 4096, 4096), TFM_UNMAPPED);
}

static void batches(tfm_session *session)
{
    static unsigned char from[40][300], into[40][300];
    tfm_write_range writes[40];
    tfm_read_range reads[40];
    uint64_t address = 0, left = 1;
    tfm_error error;
    int i;

    tfm_alloc(session, 1 << 20, &address);
    for (i = 0; i < 40; i++) {
        memset(from[i], i + 1, sizeof(from[i]));
        writes[i].address = reads[i].address = address + (uint64_t)i * 4000;
        writes[i].data = from[i];
        reads[i].into = into[i];
        writes[i].len = reads[i].len = sizeof(from[i]);
    }
    IS(tfm_write_many(session, writes, 40), TFM_OK);
    IS(tfm_read_many(session, reads, 40), TFM_OK);
    CHECK(memcmp(from, into, sizeof(from)) == 0, "ranges go where they belong");
    IS(tfm_read_many(session, NULL, 0), TFM_OK);
    IS(tfm_read_many(session, NULL, 1), TFM_INVALID_ARGUMENT);
    IS(tfm_write_many(session, NULL, 1), TFM_INVALID_ARGUMENT);
    IS(tfm_read_many(session, reads, (size_t)-1), TFM_INVALID_ARGUMENT);
    IS(tfm_write_many(session, writes, (size_t)-1), TFM_INVALID_ARGUMENT);

    memset(into, 0, sizeof(into));
    reads[17].address = 0x123456000;
    reads[30].address = 0x123457000;
    IS(tfm_read_many(session, reads, 40), TFM_UNMAPPED);
    tfm_last_error(&error);
    CHECK(error.index == 17 && error.address == 0x123456000, "the first that failed");
    CHECK(into[17][0] == 0 && into[16][0] == 17 && into[39][299] == 40, "the others are read");
    writes[39].address = 0x123456000;
    IS(tfm_write_many(session, writes, 40), TFM_UNMAPPED);
    tfm_last_error(&error);
    CHECK(error.index == 39, "the index of a write");
    writes[39].address = (uint64_t)0 - writes[39].len;
    IS(tfm_write_many(session, writes, 40), TFM_TOO_LONG);
    tfm_last_error(&error);
    CHECK(error.index == 39, "the one whose end is 2^64");

    reads[20].into = into[21] + 299;
    IS(tfm_read_many(session, reads, 40), TFM_INVALID_ARGUMENT);
    tfm_last_error(&error);
    CHECK(error.index == 21 || error.index == 20, "the one that overlaps");
    reads[20].into = into[20];
    reads[20].len = TFM_LEN_MAX + 1;
    reads[20].into = NULL;
    IS(tfm_read_many(session, reads, 21), TFM_TOO_LONG);
    tfm_last_error(&error);
    CHECK(error.index == 20, "the one that is too long");
    reads[20].len = 1;
    IS(tfm_read_many(session, reads, 21), TFM_INVALID_ARGUMENT);
    writes[1].data = NULL;
    IS(tfm_write_many(session, writes, 2), TFM_INVALID_ARGUMENT);
    IS(tfm_outstanding(session, &left), TFM_OK);
    CHECK(left == 0, "nothing was left behind");
    tfm_free(session, address, 1 << 20);
}

static void regions(tfm_session *session, tfm_session *other)
{
    static const char long_name[] =
        "a name of 65 bytes, which is one byte longer than names can be...";
    uint64_t memory = 0, region = 0, found = 0, mapped = 0, ours = 0, theirs = 0, at = 0x5000000;
    char text[6];

    tfm_alloc(session, 8192, &memory);
    tfm_space(session, &ours);
    tfm_space(other, &theirs);
    tfm_write(session, memory, "hello", 6, NULL);
    IS(tfm_open(other), TFM_OK);
    IS(tfm_region(session, "", memory, 8192, &region), TFM_NAME);
    IS(tfm_region(session, long_name, memory, 8192, &region), TFM_NAME);
    IS(tfm_region(session, NULL, memory, 8192, &region), TFM_INVALID_ARGUMENT);
    IS(tfm_region(session, "table", memory, 8192, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_region(session, "table", memory, 8192, &region), TFM_OK);
    IS(tfm_free(session, memory, 8192), TFM_IN_USE);
    IS(tfm_find(session, "table", &found), TFM_OK);
    CHECK(found == region, "a region is found by its name");
    IS(tfm_find(session, "tabl", &found), TFM_NO_SUCH_REGION);
    IS(tfm_find(session, long_name, &found), TFM_NAME);
    IS(tfm_find(session, NULL, &found), TFM_INVALID_ARGUMENT);
    IS(tfm_find(session, "table", NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_find(other, "table", &found), TFM_NO_SUCH_REGION);
    IS(tfm_map(other, region, NULL, &mapped), TFM_NO_SUCH_REGION);
    IS(tfm_grant(session, region, theirs, 4), TFM_INVALID_ARGUMENT);
    IS(tfm_grant(session, region, theirs, TFM_READ), TFM_OK);
    IS(tfm_map(other, region, NULL, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_map(other, region, &at, &mapped), TFM_OK);
    CHECK(mapped == at, "the address that was asked for");
    IS(tfm_map(other, region, NULL, &mapped), TFM_IN_USE);
    IS(tfm_read(other, mapped, text, 6), TFM_OK);
    CHECK(strcmp(text, "hello") == 0, "what another space wrote is read");
    IS(tfm_write(other, mapped, text, 6, NULL), TFM_PERMISSION);
    IS(tfm_revoke(session, region, theirs), TFM_OK);
    IS(tfm_read(other, mapped, text, 6), TFM_UNMAPPED);
    IS(tfm_grant(session, region, theirs, TFM_READ_WRITE), TFM_OK);
    IS(tfm_map(other, region, NULL, &mapped), TFM_OK);
    IS(tfm_write(other, mapped + 4, "!", 1, NULL), TFM_OK);
    IS(tfm_read(session, memory, text, 6), TFM_OK);
    CHECK(strcmp(text, "hell!") == 0, "what the other space wrote is read");
    IS(tfm_retire(other, region), TFM_NO_SUCH_REGION);
    IS(tfm_retire(session, region), TFM_OK);
    IS(tfm_find(session, "table", &found), TFM_NO_SUCH_REGION);
    IS(tfm_free(session, memory, 8192), TFM_OK);
}

static void asynchronous(tfm_session *session)
{
    uint64_t address = 0, ids[5], count = 9, extra = 0;
    tfm_completion completion, copy;
    unsigned char first = 0;
    tfm_error error;
    int i, got[5], good = 1;

    tfm_alloc(session, 65536, &address);
    IS(tfm_poll(session, TFM_FOREVER, &completion), TFM_NO_COMPLETION);
    IS(tfm_submit_write(session, address, "asynchronous", 12, NULL, &ids[0]), TFM_OK);
    IS(tfm_submit_read(session, address, 12, &ids[1]), TFM_OK);
    IS(tfm_submit_fetch_add(session, address + 16, 5, NULL, &ids[2]), TFM_OK);
    IS(tfm_submit_cas(session, address + 16, 5, 6, NULL, &ids[3]), TFM_OK);
    IS(tfm_submit_read(session, 0x123456000, 1, &ids[4]), TFM_OK);
    IS(tfm_outstanding(session, &count), TFM_OK);
    CHECK(count == 5, "five are outstanding");
    /* A call that waits leaves their completions alone. */
    IS(tfm_read(session, address + 4096, &first, 1), TFM_OK);
    memset(got, 0, sizeof(got));
    memset(&copy, 0, sizeof(copy));
    while (tfm_poll(session, TFM_FOREVER, &completion) == TFM_OK) {
        for (i = 0; i < 5 && completion.id != ids[i]; i++) {
        }
        if (i == 5) {
            good = 0;
            break;
        }
        got[i]++;
        good = good && completion.id != 0 && completion.reserved == 0;
        good = good && (i == 1) == (completion.data != NULL);
        good = good && completion.status == (i == 4 ? TFM_UNMAPPED : TFM_OK);
        good = good && completion.value == (i == 3 ? 5u : 0u);
        if (i == 1) {
            good = good && completion.len == 12;
            good = good && memcmp(completion.data, "asynchronous", 12) == 0;
            copy = completion;
        } else {
            good = good && tfm_release(session, &completion) == TFM_OK;
        }
        if (i == 4) {
            good = good && tfm_last_error(&error) == TFM_UNMAPPED;
            good = good && error.address == 0x123456000;
        }
    }
    CHECK(good, "completions are those of their operations");
    CHECK(got[0] == 1 && got[1] == 1 && got[2] == 1 && got[3] == 1 && got[4] == 1, "each once");
    IS(tfm_last_error(NULL), TFM_NO_COMPLETION);
    IS(tfm_outstanding(session, &count), TFM_OK);
    CHECK(count == 0, "none is outstanding");
    completion = copy;
    CHECK(memcmp(copy.data, "asynchronous", 12) == 0, "data stays until it is released");
    copy.data = &first;
    IS(tfm_release(session, &copy), TFM_INVALID_ARGUMENT);
    copy = completion;
    IS(tfm_release(session, &copy), TFM_OK);
    CHECK(copy.data == NULL && copy.len == 0, "and is then gone");
    IS(tfm_release(session, &copy), TFM_OK);
    IS(tfm_release(session, &completion), TFM_INVALID_ARGUMENT);
    IS(tfm_release(session, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_poll(session, 0, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_outstanding(session, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_submit_read(session, address, 1, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_submit_read(session, address, (size_t)-1, &extra), TFM_TOO_LONG);
    IS(tfm_submit_write(session, address, "", 1, NULL, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_submit_write(session, address, NULL, 1, NULL, &extra), TFM_INVALID_ARGUMENT);
    IS(tfm_submit_cas(session, address, 0, 0, NULL, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_submit_fetch_add(session, address, 0, NULL, NULL), TFM_INVALID_ARGUMENT);
    IS(tfm_outstanding(session, &count), TFM_OK);
    CHECK(count == 0 && extra == 0, "what is refused is not outstanding");

    /* Left behind for tfm_disconnect: an operation, a completion, and data that is lent. */
    tfm_submit_read(session, address, 4096, &extra);
    tfm_poll(session, TFM_FOREVER, &completion);
    tfm_submit_read(session, address, 4096, &extra);
    tfm_fence(session);
    tfm_submit_read(session, address, 4096, &extra);
}

static tfm_session *shared;
static volatile int is_done;

static void *wait_for_an_answer(void *status)
{
    unsigned char byte;

    do {
        *(int *)status = tfm_read(shared, 0x1000, &byte, 1);
    } while (*(int *)status == TFM_BUSY);
    is_done = 1;
    return NULL;
}

static void failing(const char *silent, const char *stopped)
{
    pthread_t thread;
    uint64_t address = 0, space, seconds;
    int status = -1, refused, disconnected, tries;
    char line[16];

    /* A second is long enough for this thread to see the other one waiting, unless the machine is
       busy. */
    for (seconds = 1; seconds <= 64; seconds *= 4) {
        shared = open_session(silent, 0, seconds * SECOND);
        is_done = 0;
        if (pthread_create(&thread, NULL, wait_for_an_answer, &status) != 0) {
            CHECK(0, "a thread");
            return;
        }
        disconnected = TFM_BUSY;
        do {
            refused = tfm_space(shared, &space);
        } while (refused == TFM_OK && !is_done);
        if (refused == TFM_BUSY)
            disconnected = tfm_disconnect(shared);
        pthread_join(thread, NULL);
        CHECK(status == TFM_NODE_GONE, "a node that does not answer");
        if (disconnected != TFM_BUSY)
            continue;
        IS(tfm_space(shared, &space), TFM_OK);
        IS(tfm_disconnect(shared), TFM_OK);
        if (refused == TFM_BUSY)
            break;
    }
    CHECK(seconds <= 64, "a session that another thread uses");

    shared = open_session(stopped, 0, 2 * SECOND);
    /* Again where a busy machine has not answered within the timeout. */
    for (tries = 0; tries < 30 && tfm_open(shared) != TFM_OK; tries++)
        continue;
    for (; tries < 30 && tfm_alloc(shared, 4096, &address) != TFM_OK; tries++)
        continue;
    CHECK(tries < 30, "a node that answers");
    printf("stop\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof(line), stdin) != NULL, "the node is stopped");
    IS(tfm_write(shared, address, "?", 1, NULL), TFM_OUTCOME_UNKNOWN);
    IS(tfm_read(shared, address, line, 1), TFM_NODE_GONE);
    IS(tfm_disconnect(shared), TFM_OK);
}

static void encrypted(const char *node, const char *capability, uint64_t expected)
{
    tfm_session *session = NULL;
    uint64_t address = 0, space = 0;
    char text[7];

    IS(tfm_connect(node, expected + 1, capability, NULL, &session), TFM_CAPABILITY);
    IS(tfm_connect(node, expected, capability + 1, NULL, &session), TFM_CAPABILITY);
    session = open_session(node, expected, 500 * MS);
    IS(tfm_open(session), TFM_NODE_GONE);
    IS(tfm_disconnect(session), TFM_OK);
    IS(tfm_connect(node, 0, capability, NULL, &session), TFM_OK);
    IS(tfm_space(session, &space), TFM_OK);
    CHECK(space == expected, "the space of the capability");
    IS(tfm_disconnect(session), TFM_OK);
    session = open_with(node, expected, capability, 60 * SECOND);
    IS(tfm_open(session), TFM_OK);
    IS(tfm_alloc(session, 4096, &address), TFM_OK);
    IS(tfm_write(session, address, "hidden", 7, NULL), TFM_OK);
    IS(tfm_read(session, address, text, 7), TFM_OK);
    CHECK(strcmp(text, "hidden") == 0, "what was written encrypted is read");
    IS(tfm_disconnect(session), TFM_OK);
}

int main(int count, char **arguments)
{
    tfm_session *session, *other;
    uint64_t address = 0;

    if (count != 7) {
        return 2;
    }
    the_library();
    connecting(arguments[1]);
    session = open_session(arguments[1], 0, 60 * SECOND);
    other = open_session(arguments[1], 0, 60 * SECOND);
    memory(session);
    batches(session);
    regions(session, other);
    asynchronous(session);
    IS(tfm_close(other), TFM_OK);
    IS(tfm_alloc(other, 4096, &address), TFM_NO_SUCH_SPACE);
    IS(tfm_disconnect(other), TFM_OK);
    IS(tfm_close(session), TFM_OK);
    IS(tfm_disconnect(session), TFM_OK);
    encrypted(arguments[4], arguments[5], strtoul(arguments[6], NULL, 10));
    failing(arguments[2], arguments[3]);
    printf("1..%d\n", number);
    return failures == 0 ? 0 : 1;
}
