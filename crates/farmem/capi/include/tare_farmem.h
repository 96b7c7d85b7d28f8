/*
 * libtare_farmem: the client of Tare's remote memory.
 *
 * Licensed under MIT OR Apache-2.0. Manual: tare_farmem(3).
 *
 * A session is one address space at one node. Memory is allocated at the node, which gives its
 * address in the space, a uint64_t that is no pointer; data moves by reads and writes.
 *
 * Common to all functions:
 *
 *  - Functions that return int return a code of enum tfm_status: TFM_OK, which is 0, or the reason
 *    why the call did not succeed. Each may also return TFM_INVALID_ARGUMENT, TFM_CLOSED, TFM_BUSY,
 *    TFM_IO, TFM_INTERNAL, and TFM_UNAUTHORIZED; the comment of a function names the rest.
 *    tfm_strerror() explains a code; tfm_last_error() and tfm_last_message() have the particulars
 *    of the last failure of the calling thread.
 *  - An operation that is refused (codes from 64 on) has changed nothing. One that ends with
 *    TFM_TIMEOUT or TFM_NODE_GONE has changed nothing either. TFM_OUTCOME_UNKNOWN means that it may
 *    have happened, once.
 *  - Results are stored only if the call returns TFM_OK. A pointer to a result must not be NULL
 *    unless its comment says so. Pointers need no alignment.
 *  - Sizes are in bytes, times in nanoseconds. Memory of the caller is used during the call only.
 *  - A session is used by one thread at a time, in any order: a call while another thread is in a
 *    call with the same session has no effect and returns TFM_BUSY. Different sessions do not
 *    disturb each other. A session that was disconnected is known as such: TFM_CLOSED.
 *  - No function is for signal handlers. After fork() a child must not use sessions of its parent
 *    but to disconnect them.
 *  - An error of the library itself is TFM_INTERNAL, with a message on standard error; the session
 *    can then only be disconnected. Nothing is thrown through the caller.
 */
#ifndef TARE_FARMEM_H
#define TARE_FARMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The version of this header; tfm_version() has that of the library. */
#define TFM_VERSION "0.1.0"

/** A time without end, for tfm_poll(), and for busy_ns of the options. */
#define TFM_FOREVER ((uint64_t)-1)

/** The longest range of one read or write: 1 GiB. */
#define TFM_LEN_MAX ((size_t)1 << 30)

/** The longest name of a region, without the NUL behind it. */
#define TFM_NAME_MAX 64

/** The results of calls and of operations. Later versions may add codes, and change none. */
enum tfm_status {
    /** Success. */
    TFM_OK = 0,

    /* The call is at fault, or cannot be served now. It had no effect. */

    /** A NULL pointer, a wrong size, or an unknown value. */
    TFM_INVALID_ARGUMENT = 1,
    /** The session was disconnected, or never was one. */
    TFM_CLOSED = 2,
    /** Another thread is in a call with this session. */
    TFM_BUSY = 3,
    /** This version of the library cannot do that. */
    TFM_UNSUPPORTED = 4,
    /** An error of the library. */
    TFM_INTERNAL = 5,
    /** No operation has completed within the time to wait, or none is outstanding. */
    TFM_NO_COMPLETION = 6,
    /** The process has as many sessions as it may have. */
    TFM_SESSIONS = 7,

    /* The operation was not taken. */

    /** Too many operations are outstanding: poll first. */
    TFM_FULL = 16,
    /** It transfers more than 1 GiB, or beyond the last address. */
    TFM_TOO_LONG = 17,
    /** The session has no capability for its space. */
    TFM_UNAUTHORIZED = 18,

    /* The operation was given up. */

    /** It may have happened, or may still happen, once: no answer came, or the node restarted. */
    TFM_OUTCOME_UNKNOWN = 32,
    /** The node was there, but slow; nothing happened. */
    TFM_TIMEOUT = 33,
    /**
     * The node does not answer; nothing happened. A session over shared memory ("shm:PATH") ends
     * with its node: when the node has been started again, disconnect and connect again.
     */
    TFM_NODE_GONE = 34,

    /* The session cannot be opened or used. */

    /** The operating system failed; tfm_last_error() has its error number. */
    TFM_IO = 48,
    /** The address of the node is no address, or has no host. */
    TFM_ADDRESS = 49,
    /** The text is no capability, or one of another space. */
    TFM_CAPABILITY = 50,

    /* The node refused the operation, which changed nothing. */

    /** There is no such space: open it first. */
    TFM_NO_SUCH_SPACE = 64,
    /** The space may not do this with the page. */
    TFM_PERMISSION = 65,
    /** No memory is allocated there. */
    TFM_UNMAPPED = 66,
    /** The range overlaps another allocation or mapping. */
    TFM_OVERLAP = 67,
    /** The space has as much memory, locks or regions as it may have. */
    TFM_QUOTA = 68,
    /** The node has no more memory, or no more room in its page table. */
    TFM_OUT_OF_MEMORY = 69,
    /** The address is no multiple of what the operation needs. */
    TFM_MISALIGNED = 70,
    /** The range is empty, too long, or goes beyond the last address. */
    TFM_LENGTH = 71,
    /** The lease is zero or longer than an hour. */
    TFM_LEASE = 72,
    /** Another holder has the lock. */
    TFM_LOCKED = 73,
    /** The lease has expired, or the lock was given back. */
    TFM_STALE_TOKEN = 74,
    /** There is no such region, or it is not granted to the space. */
    TFM_NO_SUCH_REGION = 75,
    /** The name is empty, too long, or another region has it. */
    TFM_NAME = 76,
    /** The memory belongs to a region, or the region is mapped already. */
    TFM_IN_USE = 77
};

/** The size of the pages of an allocation. */
enum tfm_page {
    /** 4 KiB. */
    TFM_PAGE_SMALL = 0,
    /** 2 MiB. */
    TFM_PAGE_LARGE = 1,
    /** 1 GiB. */
    TFM_PAGE_HUGE = 2
};

/** The access of a space to memory. */
enum tfm_permission {
    /** Reading alone. */
    TFM_READ = 1,
    /** Writing alone. */
    TFM_WRITE = 2,
    /** Both, and with that compare-and-swap and fetch-and-add. */
    TFM_READ_WRITE = 3
};

/** A session with a node. It is a number in the disguise of a pointer, and points to nothing. */
typedef struct tfm_session tfm_session;

/** The settings of a session. Members that are 0 have their default. */
typedef struct tfm_options {
    /** sizeof(tfm_options), by which the library knows the version of the caller's header. */
    size_t size;
    /**
     * The time after which an operation is given up; by default 250 ms. Over UDP and frames the
     * node's if that is less: the 250 ms of `tare memory serve`. While parts of a long read or
     * write are answered, it begins anew with each.
     */
    uint64_t timeout_ns;
    /**
     * The time for which a call that waits keeps asking, before it sleeps: it answers sooner, and
     * takes a processor. TFM_FOREVER never sleeps; by default it sleeps at once.
     */
    uint64_t busy_ns;
    /** Most operations that are outstanding, from 1 to 2^20; by default 4096. */
    uint32_t operations_max;
    /**
     * Longest datagram in both directions, at least 1024; by default 8264 to a node on this
     * machine, and to any other 1472, over IPv6 1452. The node's, if less.
     */
    uint32_t datagram_bytes;
} tfm_options;

/** Options with all defaults: tfm_options options = TFM_OPTIONS_INIT; */
#define TFM_OPTIONS_INIT { sizeof(tfm_options), 0, 0, 0, 0 }

/** A lock under which an operation happens: it is refused unless the token is the holder's. */
typedef struct tfm_guard {
    /** The address of the lock. */
    uint64_t lock;
    /** The token of tfm_lock(). */
    uint64_t token;
} tfm_guard;

/** A range to read. */
typedef struct tfm_read_range {
    /** The first byte in the space. */
    uint64_t address;
    /** The place for the bytes, which no other range of the call overlaps. */
    void *into;
    /** The number of bytes. */
    size_t len;
} tfm_read_range;

/** A range to write. */
typedef struct tfm_write_range {
    /** The first byte in the space. */
    uint64_t address;
    /** The bytes. */
    const void *data;
    /** The number of bytes. */
    size_t len;
} tfm_write_range;

/** The end of an operation that was submitted. */
typedef struct tfm_completion {
    /** The number that the operation got when it was submitted. */
    uint64_t id;
    /** The value before, of tfm_submit_cas() and tfm_submit_fetch_add(); else 0. */
    uint64_t value;
    /**
     * The bytes that were read, NULL if there are none. They belong to the session, and are there
     * until tfm_release() or tfm_disconnect().
     */
    const void *data;
    /** The number of these bytes. */
    size_t len;
    /** The result of the operation, a code of enum tfm_status. */
    int status;
    /** 0. */
    int reserved;
} tfm_completion;

/** The particulars of a failure. Members that do not concern its code are 0. */
typedef struct tfm_error {
    /** The code. */
    int status;
    /** TFM_IO: the error number of the operating system (errno), 0 if it gave none. */
    int os_error;
    /** TFM_PERMISSION, TFM_UNMAPPED, TFM_OVERLAP: the first address that is concerned. */
    uint64_t address;
    /** TFM_MISALIGNED: the alignment that the operation needs. */
    uint64_t multiple;
    /** TFM_LOCKED: the time after which the holder's lease has expired. */
    uint64_t retry_after_ns;
    /** tfm_read_many(), tfm_write_many(): the index of the first range that failed. */
    uint64_t index;
} tfm_error;

/* ---- The library ------------------------------------------------------------------------- */

/** Returns the version of the library, a text that is never freed. */
const char *tfm_version(void);

/** Returns a sentence about a code, a text that is never freed; also for an unknown code. */
const char *tfm_strerror(int status);

/**
 * Stores the particulars of the last failure of the calling thread, also that of an operation
 * whose completion tfm_poll() gave. A call that succeeds does not change it. error may be NULL.
 * Returns the code; TFM_OK if no call of this thread has failed yet.
 */
int tfm_last_error(tfm_error *error);

/**
 * Writes a sentence with the particulars of the last failure of the calling thread, cut to size
 * bytes with a NUL at the end. buffer may be NULL if size is 0.
 * Returns the length of the whole sentence without the NUL, as snprintf() does.
 */
size_t tfm_last_message(char *buffer, size_t size);

/* ---- Sessions ---------------------------------------------------------------------------- */

/**
 * Opens a session. Over UDP it asks the node for nothing: whether the node is there shows with the
 * first operation.
 *
 *  address     the node, "udp://HOST:PORT", or "shm:PATH" for one on this machine
 *  space       the number of the address space; 0 for that of the capability, or without one for
 *              a random space, see tfm_space()
 *  capability  the text that the node's operator made for the space, if the node demands
 *              encryption, "farmem-space:...", to be kept secret and wiped by the caller;
 *              otherwise NULL
 *  options     the settings, NULL for defaults
 *  session     where the session is stored; tfm_disconnect() ends it
 *
 * Errors: TFM_ADDRESS, TFM_CAPABILITY, TFM_SESSIONS; TFM_UNSUPPORTED for options of a newer header
 * that are not 0.
 */
int tfm_connect(const char *address, uint64_t space, const char *capability,
                const tfm_options *options, tfm_session **session);

/**
 * Ends a session and frees its memory in this process, with data of completions. The space with
 * its memory at the node stays, see tfm_close(). Operations that are outstanding may happen or not.
 * NULL is no session, and no error.
 */
int tfm_disconnect(tfm_session *session);

/** Stores the number of the session's address space. */
int tfm_space(tfm_session *session, uint64_t *space);

/**
 * Makes the address space at the node, unless it exists.
 * Errors: TFM_OUT_OF_MEMORY, TFM_UNAUTHORIZED, and those of an operation that is given up.
 */
int tfm_open(tfm_session *session);

/**
 * Removes the address space from the node, with its memory, its locks and its regions.
 * Errors: TFM_NO_SUCH_SPACE and those of an operation that is given up.
 */
int tfm_close(tfm_session *session);

/**
 * Asks the node for an answer, and stores the time of the round trip. The space need not exist.
 * Errors: TFM_TIMEOUT, TFM_NODE_GONE.
 */
int tfm_ping(tfm_session *session, uint64_t *round_trip_ns);

/* ---- Memory ------------------------------------------------------------------------------ *
 *
 * All operations may be given up (TFM_OUTCOME_UNKNOWN, TFM_TIMEOUT, TFM_NODE_GONE), and all need
 * the space (TFM_NO_SUCH_SPACE). They run after operations on the same pages that were submitted
 * before.
 */

/**
 * Allocates bytes of memory, rounded up to pages of 4 KiB, which can be read and written and reads
 * as zero. The node chooses the address, which is stored.
 * Errors: TFM_LENGTH, TFM_QUOTA, TFM_OUT_OF_MEMORY.
 */
int tfm_alloc(tfm_session *session, uint64_t bytes, uint64_t *address);

/**
 * The same at an address that the caller chooses, a multiple of 4096.
 * Errors: those of tfm_alloc(), TFM_MISALIGNED, TFM_OVERLAP.
 */
int tfm_alloc_at(tfm_session *session, uint64_t address, uint64_t bytes);

/**
 * The same with all choices.
 *
 *  page        the size of the pages, of enum tfm_page
 *  permission  the access of the space, of enum tfm_permission
 *  sparse      1 for a range that may be far longer than memory: pages count for the quota when
 *              they are first written; otherwise 0
 *  at          the address, a multiple of the page size; NULL lets the node choose
 *  address     where the first address is stored
 *
 * Errors: those of tfm_alloc_at().
 */
int tfm_alloc_with(tfm_session *session, uint64_t bytes, int page, int permission, int sparse,
                   const uint64_t *at, uint64_t *address);

/**
 * Frees whole pages of an allocation, also a part of it, or unmaps a region as a whole.
 * Errors: TFM_UNMAPPED, TFM_MISALIGNED, TFM_LENGTH, TFM_IN_USE for memory of a region; TFM_QUOTA
 * and TFM_OUT_OF_MEMORY for the middle of an allocation, which makes two of it.
 */
int tfm_free(tfm_session *session, uint64_t address, uint64_t bytes);

/**
 * Reads len bytes, at most TFM_LEN_MAX. If it fails, the memory is as it was.
 * Errors: TFM_TOO_LONG, TFM_LENGTH for none, TFM_UNMAPPED, TFM_PERMISSION.
 */
int tfm_read(tfm_session *session, uint64_t address, void *into, size_t len);

/**
 * Writes len bytes, at most TFM_LEN_MAX, as a whole or not at all. With a guard only if the lock is
 * held; guard may be NULL.
 * Errors: those of tfm_read(), TFM_STALE_TOKEN; TFM_OUT_OF_MEMORY for pages that were not written
 * before, and for those of sparse memory TFM_QUOTA.
 */
int tfm_write(tfm_session *session, uint64_t address, const void *data, size_t len,
              const tfm_guard *guard);

/**
 * Stores desired if the 64-bit little-endian value is expected, and in *old the value before: it
 * has happened if *old is expected. guard may be NULL.
 * Errors: TFM_MISALIGNED unless the address is a multiple of 8, TFM_LENGTH for the last one,
 * TFM_UNMAPPED, TFM_PERMISSION, TFM_STALE_TOKEN; for a page that was not written before those of
 * tfm_write().
 */
int tfm_cas(tfm_session *session, uint64_t address, uint64_t expected, uint64_t desired,
            const tfm_guard *guard, uint64_t *old);

/**
 * Adds to the 64-bit little-endian value, with wrap-around, and stores in *old the value before.
 * guard may be NULL.
 * Errors: those of tfm_cas().
 */
int tfm_fetch_add(tfm_session *session, uint64_t address, uint64_t add, const tfm_guard *guard,
                  uint64_t *old);

/**
 * Takes the lock of an address, a multiple of 8, whose bytes stay as they are. After lease_ns, at
 * most an hour, it is free again. While another holder has it, tries again for at most patience_ns.
 * The token that is stored is greater than all that the node gave before.
 * Errors: TFM_LOCKED, TFM_LEASE, TFM_MISALIGNED, TFM_LENGTH for the last address, TFM_UNMAPPED,
 * TFM_PERMISSION, TFM_QUOTA, TFM_OUT_OF_MEMORY.
 */
int tfm_lock(tfm_session *session, uint64_t address, uint64_t lease_ns, uint64_t patience_ns,
             uint64_t *token);

/**
 * Gives a lock back.
 * Errors: TFM_STALE_TOKEN, TFM_UNMAPPED.
 */
int tfm_unlock(tfm_session *session, uint64_t address, uint64_t token);

/** Waits until all operations that were submitted before have ended. */
int tfm_fence(tfm_session *session);

/**
 * Reads several ranges, all outstanding at once. count is at most 2^20.
 * Errors: those of tfm_read(), of the first range that failed, whose index tfm_last_error() has,
 * after all have ended; the memory of ranges that failed is as it was. Before anything is sent:
 * TFM_TOO_LONG, and TFM_INVALID_ARGUMENT if places overlap.
 */
int tfm_read_many(tfm_session *session, const tfm_read_range *ranges, size_t count);

/**
 * Writes several ranges, all outstanding at once, each as a whole or not at all. count is at most
 * 2^20. Ranges on the same page are written in their order.
 * Errors: as tfm_read_many(), and those of tfm_write().
 */
int tfm_write_many(tfm_session *session, const tfm_write_range *ranges, size_t count);

/* ---- Regions ----------------------------------------------------------------------------- *
 *
 * A region is a named range of the space's memory that other spaces may map. Names are of 1 to
 * TFM_NAME_MAX bytes with a NUL behind them, and unique on the node. Errors that all may have: see
 * "Memory".
 */

/**
 * Names whole pages of the space's own memory, which from now on cannot be freed, and stores the
 * number of the region.
 * Errors: TFM_NAME, TFM_UNMAPPED, TFM_MISALIGNED, TFM_LENGTH, TFM_QUOTA, TFM_OUT_OF_MEMORY,
 * TFM_IN_USE.
 */
int tfm_region(tfm_session *session, const char *name, uint64_t address, uint64_t bytes,
               uint64_t *region);

/**
 * Stores the number of a region that belongs or is granted to the space.
 * Errors: TFM_NO_SUCH_REGION, TFM_NAME.
 */
int tfm_find(tfm_session *session, const char *name, uint64_t *region);

/**
 * Lets another space map a region of this space, with an access of enum tfm_permission. A grant
 * with another one replaces the first, and unmaps the region.
 * Errors: TFM_NO_SUCH_REGION, TFM_NO_SUCH_SPACE, TFM_PERMISSION, TFM_QUOTA, TFM_OUT_OF_MEMORY.
 */
int tfm_grant(tfm_session *session, uint64_t region, uint64_t to_space, int permission);

/**
 * Takes a grant back, and unmaps the region from the other space.
 * Errors: TFM_NO_SUCH_REGION.
 */
int tfm_revoke(tfm_session *session, uint64_t region, uint64_t from_space);

/**
 * Maps a region that is granted to the space, once at a time, and stores its first address. at is
 * the address, a multiple of the region's page size; NULL lets the node choose.
 * Errors: TFM_NO_SUCH_REGION, TFM_IN_USE, TFM_OVERLAP, TFM_MISALIGNED, TFM_LENGTH beyond the last
 * address, TFM_QUOTA if the space had more mapped than its quota, TFM_OUT_OF_MEMORY.
 */
int tfm_map(tfm_session *session, uint64_t region, const uint64_t *at, uint64_t *address);

/**
 * Ends a region of the space, with all grants and mappings; the memory stays.
 * Errors: TFM_NO_SUCH_REGION.
 */
int tfm_retire(tfm_session *session, uint64_t region);

/* ---- Asynchronous use -------------------------------------------------------------------- *
 *
 * A submitted operation gets a number, never 0 and never given twice by a session. It is sent by
 * the next tfm_poll() or by the next call that waits, together with others. Its completion comes
 * by tfm_poll() once. Operations on the same page, of which one writes, run in the order of
 * submission.
 *
 * Errors of all that submit: TFM_FULL, TFM_TOO_LONG. That the operation itself failed is the status
 * of its completion. id must not be NULL.
 */

/** Submits a read of len bytes, at most TFM_LEN_MAX; they come with the completion. */
int tfm_submit_read(tfm_session *session, uint64_t address, size_t len, uint64_t *id);

/** Submits a write as tfm_write(); the bytes are copied. */
int tfm_submit_write(tfm_session *session, uint64_t address, const void *data, size_t len,
                     const tfm_guard *guard, uint64_t *id);

/** Submits a compare-and-swap as tfm_cas(); the value before comes with the completion. */
int tfm_submit_cas(tfm_session *session, uint64_t address, uint64_t expected, uint64_t desired,
                   const tfm_guard *guard, uint64_t *id);

/** Submits an addition as tfm_fetch_add(); the value before comes with the completion. */
int tfm_submit_fetch_add(tfm_session *session, uint64_t address, uint64_t add,
                         const tfm_guard *guard, uint64_t *id);

/**
 * Sends what was submitted, and stores the next completion, for which it waits for about wait_ns,
 * less if none is outstanding; 0 does not wait. If the operation failed, the call succeeds and the
 * status of the completion is not TFM_OK.
 * Errors: TFM_NO_COMPLETION.
 */
int tfm_poll(tfm_session *session, uint64_t wait_ns, tfm_completion *completion);

/**
 * Gives the data of a completion back to the session, and sets data to NULL and len to 0. Without
 * data it has no effect.
 * Errors: TFM_INVALID_ARGUMENT if the session has no such data, or no more.
 */
int tfm_release(tfm_session *session, tfm_completion *completion);

/** Stores the number of operations that were submitted and not yet given by tfm_poll(). */
int tfm_outstanding(tfm_session *session, uint64_t *count);

#ifdef __cplusplus
}
#endif

#endif /* TARE_FARMEM_H */
