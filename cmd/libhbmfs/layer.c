// The functions of libhbmfs.h, of readers and what they share. layer_writer.c and layer_kv.c have the others.
#include "bell.h"
#include "layer.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

volatile int hbmfs_forked;

static void in_child(void) { hbmfs_forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

int32_t hbmfs_fail(hbmfs_failure *why, int32_t code, const char *text) {
    if (why) {
        why->code = code;
        why->os_errno = 0;
        snprintf(why->text, sizeof why->text, "%s", text);
    }
    return code;
}

int32_t hbmfs_fail_forked(hbmfs_failure *why) {
    return hbmfs_fail(why, HBMFS_FORKED, "this process was forked from one that had loaded libhbmfs, whose threads did not come along: "
                                   "start it with spawn or exec, or load the library after the fork");
}

int32_t hbmfs_fail_null(hbmfs_failure *why) { return hbmfs_fail(why, HBMFS_INVALID, "an argument that must not be NULL is NULL"); }
int32_t hbmfs_fail_size(hbmfs_failure *why) { return hbmfs_fail(why, HBMFS_INVALID, "struct_size is not set to the size of the struct"); }

uint32_t hbmfs_abi(void) { return HBMFS_ABI; }
const char *hbmfs_version(void) { return hbmfs_forked ? "" : hbmfs_go_version(); }

const char *hbmfs_code_name(int32_t code) {
    switch (code) {
    case HBMFS_OK: return "ok";
    case HBMFS_TIMEOUT: return "timeout";
    case HBMFS_INVALID: return "invalid argument";
    case HBMFS_CLOSED: return "closed";
    case HBMFS_NOT_FOUND: return "not found";
    case HBMFS_PERMISSION: return "permission denied";
    case HBMFS_STALE: return "stale";
    case HBMFS_UNAVAILABLE: return "unavailable";
    case HBMFS_NO_DEVICE: return "no such device";
    case HBMFS_OUT_OF_MEMORY: return "out of memory";
    case HBMFS_OUT_OF_RANGE: return "out of range";
    case HBMFS_TOO_LARGE: return "too large";
    case HBMFS_CANCELLED: return "cancelled";
    case HBMFS_EXISTS: return "already exists";
    case HBMFS_BUSY: return "busy";
    case HBMFS_FORMAT: return "damaged file";
    case HBMFS_IO: return "input/output error";
    case HBMFS_FORKED: return "used after a fork";
    case HBMFS_INTERNAL: return "internal error";
    case HBMFS_WRITE: return "writing failed";
    }
    return "unknown code";
}

int32_t hbmfs_reader_open(const hbmfs_reader_options *options, hbmfs_handle *reader, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!options || !reader);
    if (!KNOWN(options->struct_size, hbmfs_reader_options, client)) return hbmfs_fail_size(why);
    hbmfs_reader_options o = {0};
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    *reader = 0;
    return hbmfs_go_reader_open(&o, reader, why);
}

int32_t hbmfs_reader_get_info(hbmfs_handle reader, hbmfs_reader_info *info, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!info);
    if (!KNOWN(info->struct_size, hbmfs_reader_info, note)) return hbmfs_fail_size(why);
    hbmfs_reader_info full = {0};
    int32_t code = hbmfs_go_reader_info(reader, &full, why);
    if (!code) GIVE(info, full);
    return code;
}

int32_t hbmfs_reader_get_stats(hbmfs_handle reader, hbmfs_reader_stats *stats, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!stats);
    if (!KNOWN(stats->struct_size, hbmfs_reader_stats, reason)) return hbmfs_fail_size(why);
    hbmfs_reader_stats full = {0};
    int32_t code = hbmfs_go_reader_stats(reader, &full, why);
    if (!code) GIVE(stats, full);
    return code;
}

int32_t hbmfs_reader_close(hbmfs_handle reader, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_reader_close(reader, why);
}

int32_t hbmfs_file_open(hbmfs_handle reader, const char *path, hbmfs_handle *file, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path || !file);
    *file = 0;
    return hbmfs_go_file_open(reader, (char *)path, file, why);
}

int32_t hbmfs_file_open_many(hbmfs_handle reader, const char *const *paths, int64_t count, hbmfs_handle *files, int32_t *codes,
                             hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(count > 0 && (!paths || !files || !codes));
    for (int64_t i = 0; i < count; i++) REFUSE_NULL(!paths[i]);
    return hbmfs_go_file_open_many(reader, (char **)paths, count, files, codes, why);
}

int32_t hbmfs_file_get_info(hbmfs_handle file, hbmfs_file_info *info, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!info);
    if (!KNOWN(info->struct_size, hbmfs_file_info, note)) return hbmfs_fail_size(why);
    hbmfs_file_info full = {0};
    int32_t code = hbmfs_go_file_info(file, &full, why);
    if (!code) GIVE(info, full);
    return code;
}

int32_t hbmfs_file_uncache(hbmfs_handle file, int32_t page_cache, int64_t *dropped, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!dropped);
    *dropped = 0;
    return hbmfs_go_file_uncache(file, page_cache, dropped, why);
}

int32_t hbmfs_file_close(hbmfs_handle file, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_file_close(file, why);
}

int32_t hbmfs_prefetch(hbmfs_handle file, const int64_t *offsets, const int64_t *lengths, int64_t count, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(count > 0 && (!offsets || !lengths));
    return hbmfs_go_prefetch(file, (int64_t *)offsets, (int64_t *)lengths, count, why);
}

int32_t hbmfs_read_begin(hbmfs_handle file, uint64_t dst, int64_t dst_length, int64_t offset, int64_t length, uint64_t stream,
                         hbmfs_handle *request, hbmfs_failure *why) {
    return hbmfs_gather_begin(file, dst, dst_length, &offset, 1, length, HBMFS_KEEP, stream, request, why);
}

int32_t hbmfs_gather_begin(hbmfs_handle file, uint64_t dst, int64_t dst_length, const int64_t *offsets, int64_t count, int64_t length,
                           int32_t widen, uint64_t stream, hbmfs_handle *request, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!request || (count > 0 && !offsets));
    *request = 0;
    return hbmfs_go_gather_begin(file, dst, dst_length, (int64_t *)offsets, count, length, widen, stream, request, why);
}

int32_t hbmfs_batch_begin(const hbmfs_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!request || !batch);
    if (!KNOWN(batch->struct_size, hbmfs_batch, pad)) return hbmfs_fail_size(why);
    REFUSE_NULL(!batch->files || (batch->count > 0 && !batch->starts) || (batch->sequence_count > 0 && (!batch->sequence_lengths || !batch->sequence_documents)));
    *request = 0;
    hbmfs_batch full = {0};
    memcpy(&full, batch, batch->struct_size < sizeof full ? batch->struct_size : sizeof full);
    return hbmfs_go_batch_begin(&full, request, why);
}

uint64_t hbmfs_bells[HBMFS_BELLS];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Waits until a read has ended, at most timeout_ns, for ever if that is negative; not at all for what has no word. Gives what is left of the time.
static int64_t await_bell(hbmfs_handle request, int64_t timeout_ns) {
    uint64_t *bell = &hbmfs_bells[request % HBMFS_BELLS], live = request << HBMFS_BELL_BITS, awaited = live | HBMFS_AWAITED, seen = live;
    if (!timeout_ns || __atomic_load_n(bell, __ATOMIC_ACQUIRE) >> HBMFS_BELL_BITS != request || !request) return timeout_ns;
    int64_t end = timeout_ns < 0 ? 0 : now_ns() + timeout_ns, left = timeout_ns;
    __atomic_compare_exchange_n(bell, &seen, awaited, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(bell, __ATOMIC_ACQUIRE) == awaited && left) {
        struct timespec rest = {left / 1000000000, left % 1000000000};
        syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, (uint32_t)awaited, left < 0 ? NULL : &rest, NULL, 0); // the lower half, which changes with the end
        if (timeout_ns > 0 && (left = end - now_ns()) < 0) left = 0;
    }
    return left;
}

int32_t hbmfs_wait(hbmfs_handle request, int64_t timeout_ns, hbmfs_result *result, hbmfs_failure *why) {
    REFUSE_FORKED;
    if (result && !KNOWN(result->struct_size, hbmfs_result, reason)) return hbmfs_fail_size(why);
    hbmfs_result full = {0};
    int32_t code = hbmfs_go_wait(request, await_bell(request, timeout_ns), &full, why);
    if (!code && result) GIVE(result, full);
    return code;
}

int32_t hbmfs_cancel(hbmfs_handle request, int64_t timeout_ns, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_cancel(request, timeout_ns, why);
}

int32_t hbmfs_read(hbmfs_handle file, uint64_t dst, int64_t dst_length, int64_t offset, int64_t length, uint64_t stream,
                   hbmfs_result *result, hbmfs_failure *why) {
    return hbmfs_gather(file, dst, dst_length, &offset, 1, length, HBMFS_KEEP, stream, result, why);
}

int32_t hbmfs_gather(hbmfs_handle file, uint64_t dst, int64_t dst_length, const int64_t *offsets, int64_t count, int64_t length,
                     int32_t widen, uint64_t stream, hbmfs_result *result, hbmfs_failure *why) {
    REFUSE_FORKED;
    if (result && !KNOWN(result->struct_size, hbmfs_result, reason)) return hbmfs_fail_size(why);
    hbmfs_handle request;
    int32_t code = hbmfs_gather_begin(file, dst, dst_length, offsets, count, length, widen, stream, &request, why);
    return code ? code : hbmfs_wait(request, -1, result, why);
}

int32_t hbmfs_pack(const int64_t *borders, int64_t borders_count, const int64_t *begins, int64_t first, int64_t count, int64_t room,
                   const uint64_t *keys, int64_t rounds, hbmfs_packed *packed, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!packed || (borders_count > 0 && !borders) || (rounds > 0 && !keys));
    if (!KNOWN(packed->struct_size, hbmfs_packed, borders)) return hbmfs_fail_size(why);
    REFUSE_NULL(packed->capacity > 0 && (!packed->starts || !packed->lengths || !packed->documents || !packed->borders));
    return hbmfs_go_pack((int64_t *)borders, borders_count, (int64_t *)begins, first, count, room, (uint64_t *)keys, rounds, packed, why);
}

int32_t hbmfs_cut(const int64_t *const *borders, const int64_t *counts, int64_t datasets, const int32_t *sources, const int64_t *starts, int64_t rows,
                  int64_t length, int64_t *each, int64_t *lengths, int64_t *documents, uint8_t *goes_on, int64_t room, int64_t *total, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!total || (datasets > 0 && (!borders || !counts)) || (rows > 0 && (!starts || !each)) || (room > 0 && (!lengths || !documents || !goes_on)));
    return hbmfs_go_cut((int64_t **)borders, (int64_t *)counts, datasets, (int32_t *)sources, (int64_t *)starts, rows, length, each, lengths, documents, goes_on, room, total, why);
}

int32_t hbmfs_starts(const hbmfs_epochs *of, int64_t k, int64_t rounds, const uint8_t *drawn, int64_t n, const int64_t *places, int64_t count,
                     int64_t *starts, int32_t *sources, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL((k > 0 && !of) || (count > 0 && (!places || !starts || !sources)));
    return hbmfs_go_starts((hbmfs_epochs *)of, k, rounds, (uint8_t *)drawn, n, (int64_t *)places, count, starts, sources, why);
}

int32_t hbmfs_draw(hbmfs_source *sources, int64_t k, int64_t n, int64_t end, uint8_t *drawn, int64_t room, int64_t *count, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!count || (k > 0 && !sources) || (room > 0 && !drawn));
    return hbmfs_go_draw(sources, k, n, end, drawn, room, count, why);
}

int32_t hbmfs_safetensors_header(int32_t fd, const char *name, char *table, int64_t room, int64_t *length, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!name || !length || (room > 0 && !table));
    *length = 0;
    return hbmfs_go_safetensors_header(fd, (char *)name, table, room, length, why);
}
