// The functions of libhbmfs.h. They refuse a forked child and bring structs to the present size; export.go does the rest.
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "_cgo_export.h"
#include "libhbmfs.h"

// A forked child has this set, and its children too: of the parent's threads only the one that forked is there.
static volatile int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static int32_t fail(hbmfs_failure *why, int32_t code, const char *text) {
    if (why) {
        why->code = code;
        why->os_errno = 0;
        snprintf(why->text, sizeof why->text, "%s", text);
    }
    return code;
}

static int32_t fail_forked(hbmfs_failure *why) {
    return fail(why, HBMFS_FORKED, "this process was forked from one that had loaded libhbmfs, whose threads did not come along: "
                                   "start it with spawn or exec, or load the library after the fork");
}

static int32_t fail_null(hbmfs_failure *why) { return fail(why, HBMFS_INVALID, "an argument that must not be NULL is NULL"); }
static int32_t fail_size(hbmfs_failure *why) { return fail(why, HBMFS_INVALID, "struct_size is not set to the size of the struct"); }

// Every function begins with one of these.
#define REFUSE_FORKED if (forked) return fail_forked(why)
#define REFUSE_NULL(condition) if (condition) return fail_null(why)

// The first version's structs end here: a smaller size was not set.
#define KNOWN(struct_size, type, last) ((struct_size) >= offsetof(type, last) + sizeof(((type *)0)->last))

// A struct that goes out: as much of it as the caller knows.
#define GIVE(to, from) do { \
        uint32_t size_ = (to)->struct_size; \
        (from).struct_size = size_; \
        memcpy((to), &(from), size_ < sizeof(from) ? size_ : sizeof(from)); \
    } while (0)

uint32_t hbmfs_abi(void) { return HBMFS_ABI; }
const char *hbmfs_version(void) { return forked ? "" : hbmfs_go_version(); }

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
    if (!KNOWN(options->struct_size, hbmfs_reader_options, client)) return fail_size(why);
    hbmfs_reader_options o = {0};
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (o.reserved) return fail(why, HBMFS_INVALID, "a reserved field is not 0");
    *reader = 0;
    return hbmfs_go_reader_open(&o, reader, why);
}

int32_t hbmfs_reader_get_info(hbmfs_handle reader, hbmfs_reader_info *info, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!info);
    if (!KNOWN(info->struct_size, hbmfs_reader_info, note)) return fail_size(why);
    hbmfs_reader_info full = {0};
    int32_t code = hbmfs_go_reader_info(reader, &full, why);
    if (!code) GIVE(info, full);
    return code;
}

int32_t hbmfs_reader_get_stats(hbmfs_handle reader, hbmfs_reader_stats *stats, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!stats);
    if (!KNOWN(stats->struct_size, hbmfs_reader_stats, reason)) return fail_size(why);
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
    if (!KNOWN(info->struct_size, hbmfs_file_info, note)) return fail_size(why);
    hbmfs_file_info full = {0};
    int32_t code = hbmfs_go_file_info(file, &full, why);
    if (!code) GIVE(info, full);
    return code;
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
    if (!KNOWN(batch->struct_size, hbmfs_batch, document_ids)) return fail_size(why);
    REFUSE_NULL(!batch->files || (batch->count > 0 && !batch->starts) || (batch->sequence_count > 0 && (!batch->sequence_lengths || !batch->sequence_documents)));
    *request = 0;
    return hbmfs_go_batch_begin((hbmfs_batch *)batch, request, why);
}

int32_t hbmfs_wait(hbmfs_handle request, int64_t timeout_ns, hbmfs_result *result, hbmfs_failure *why) {
    REFUSE_FORKED;
    if (result && !KNOWN(result->struct_size, hbmfs_result, reason)) return fail_size(why);
    hbmfs_result full = {0};
    int32_t code = hbmfs_go_wait(request, timeout_ns, &full, why);
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
    if (result && !KNOWN(result->struct_size, hbmfs_result, reason)) return fail_size(why);
    hbmfs_handle request;
    int32_t code = hbmfs_gather_begin(file, dst, dst_length, offsets, count, length, widen, stream, &request, why);
    return code ? code : hbmfs_wait(request, -1, result, why);
}

int32_t hbmfs_pack(const int64_t *borders, int64_t borders_count, const int64_t *begins, const int64_t *documents, int64_t count, int64_t room,
                   const uint64_t *keys, int64_t rounds, hbmfs_packed *packed, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!packed || (borders_count > 0 && !borders) || (count > 0 && !documents) || (rounds > 0 && !keys));
    if (!KNOWN(packed->struct_size, hbmfs_packed, sequences_each)) return fail_size(why);
    REFUSE_NULL(packed->capacity > 0 && (!packed->starts || !packed->lengths || !packed->places || !packed->sequence_lengths || !packed->sequence_documents ||
                                         !packed->pieces_each || !packed->sequences_each));
    return hbmfs_go_pack((int64_t *)borders, borders_count, (int64_t *)begins, (int64_t *)documents, count, room, (uint64_t *)keys, rounds, packed, why);
}

int32_t hbmfs_cut(const int64_t *const *borders, const int64_t *counts, int64_t datasets, const int32_t *sources, const int64_t *starts, int64_t rows,
                  int64_t length, int64_t *each, int64_t *lengths, int64_t *documents, uint8_t *goes_on, int64_t room, int64_t *total, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!total || (datasets > 0 && (!borders || !counts)) || (rows > 0 && (!starts || !each)) || (room > 0 && (!lengths || !documents || !goes_on)));
    return hbmfs_go_cut((int64_t **)borders, (int64_t *)counts, datasets, (int32_t *)sources, (int64_t *)starts, rows, length, each, lengths, documents, goes_on, room, total, why);
}

int32_t hbmfs_permute(uint64_t *numbers, int64_t count, uint64_t n, uint64_t rows, uint64_t columns, const uint64_t *keys, int64_t rounds,
                      hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL((count > 0 && !numbers) || (rounds > 0 && !keys));
    return hbmfs_go_permute(numbers, count, n, rows, columns, (uint64_t *)keys, rounds, why);
}

int32_t hbmfs_draw(hbmfs_source *sources, int64_t k, int64_t n, int64_t end, uint8_t *drawn, int64_t room, int64_t *count, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!count || (k > 0 && !sources) || (room > 0 && !drawn));
    return hbmfs_go_draw(sources, k, n, end, drawn, room, count, why);
}

int32_t hbmfs_draft_begin(const char *path, int32_t part, int32_t parts, hbmfs_handle *draft, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path || !draft);
    *draft = 0;
    return hbmfs_go_draft_begin((char *)path, part, parts, draft, why);
}

int32_t hbmfs_draft_attach(const char *path, hbmfs_handle *draft, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path || !draft);
    *draft = 0;
    return hbmfs_go_draft_attach((char *)path, draft, why);
}

int32_t hbmfs_draft_is_in_volume(hbmfs_handle draft, int32_t *is, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!is);
    return hbmfs_go_draft_is_in_volume(draft, is, why);
}

int32_t hbmfs_checkpoint_in_volume(const char *path, int32_t *is, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path || !is);
    return hbmfs_go_checkpoint_in_volume((char *)path, is, why);
}

int32_t hbmfs_draft_write_begin(hbmfs_handle writer, hbmfs_handle draft, const hbmfs_write_file *files, int64_t file_count,
                                const hbmfs_write_part *parts, int64_t part_count, uint64_t stream, hbmfs_handle *write, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!write || (file_count > 0 && !files) || (part_count > 0 && !parts));
    for (int64_t i = 0; i < file_count; i++) REFUSE_NULL(!files[i].name);
    *write = 0;
    return hbmfs_go_draft_write_begin(writer, draft, (hbmfs_write_file *)files, file_count, (hbmfs_write_part *)parts, part_count, stream,
                                      write, why);
}

int32_t hbmfs_draft_directory(const char *path, char *directory, int64_t room, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path || !directory);
    return hbmfs_go_draft_directory((char *)path, directory, room, why);
}

int32_t hbmfs_draft_publish(hbmfs_handle draft, const hbmfs_draft_file *files, int64_t count, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(count > 0 && !files);
    for (int64_t i = 0; i < count; i++) REFUSE_NULL(!files[i].name || (files[i].sums > 0 && !files[i].crc32c));
    return hbmfs_go_draft_publish(draft, (hbmfs_draft_file *)files, count, why);
}

int32_t hbmfs_draft_drop(hbmfs_handle draft, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_draft_drop(draft, why);
}

int32_t hbmfs_checkpoint_list(const char *directory, hbmfs_checkpoint_info *infos, int64_t room, int64_t *count, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!directory || !count || (room > 0 && !infos));
    *count = 0;
    return hbmfs_go_checkpoint_list((char *)directory, infos, room, count, why);
}

int32_t hbmfs_checkpoint_remove(const char *path, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path);
    return hbmfs_go_checkpoint_remove((char *)path, why);
}

int32_t hbmfs_checkpoint_clean(const char *directory, char *names, int64_t room, int64_t *length, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!directory || !length || (room > 0 && !names));
    *length = 0;
    return hbmfs_go_checkpoint_clean((char *)directory, names, room, length, why);
}

int32_t hbmfs_verify_begin(const char *path, int32_t threads, hbmfs_handle *verification, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!path || !verification);
    *verification = 0;
    return hbmfs_go_verify_begin((char *)path, threads, verification, why);
}

int32_t hbmfs_verify_wait(hbmfs_handle verification, int64_t timeout_ns, hbmfs_verified *verified, hbmfs_failure *why) {
    REFUSE_FORKED;
    if (verified && !KNOWN(verified->struct_size, hbmfs_verified, damaged)) return fail_size(why);
    hbmfs_verified full = {0};
    int32_t code = hbmfs_go_verify_wait(verification, timeout_ns, &full, why);
    if (verified) GIVE(verified, full);
    return code;
}

int32_t hbmfs_verify_cancel(hbmfs_handle verification, int64_t timeout_ns, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_verify_cancel(verification, timeout_ns, why);
}

int32_t hbmfs_memory_alloc(hbmfs_handle reader, int64_t length, hbmfs_handle *memory, uint64_t *pointer, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!memory || !pointer);
    *memory = 0;
    *pointer = 0;
    return hbmfs_go_memory_alloc(reader, length, memory, pointer, why);
}

int32_t hbmfs_memory_copy_out(hbmfs_handle memory, int64_t offset, int64_t length, void *to, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(length > 0 && !to);
    return hbmfs_go_memory_copy_out(memory, offset, length, to, why);
}

int32_t hbmfs_memory_free(hbmfs_handle memory, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_memory_free(memory, why);
}

int32_t hbmfs_writer_open(const hbmfs_writer_options *options, hbmfs_handle *writer, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!options || !writer);
    if (!KNOWN(options->struct_size, hbmfs_writer_options, hbmfs)) return fail_size(why);
    hbmfs_writer_options o = {0};
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (o.reserved) return fail(why, HBMFS_INVALID, "a reserved field is not 0");
    *writer = 0;
    return hbmfs_go_writer_open(&o, writer, why);
}

int32_t hbmfs_writer_get_stats(hbmfs_handle writer, hbmfs_writer_stats *stats, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!stats);
    if (!KNOWN(stats->struct_size, hbmfs_writer_stats, reason)) return fail_size(why);
    hbmfs_writer_stats full = {0};
    int32_t code = hbmfs_go_writer_stats(writer, &full, why);
    if (!code) GIVE(stats, full);
    return code;
}

int32_t hbmfs_writer_wait_ready(hbmfs_handle writer, int64_t timeout_ns, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_writer_wait_ready(writer, timeout_ns, why);
}

int32_t hbmfs_writer_close(hbmfs_handle writer, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_writer_close(writer, why);
}

int32_t hbmfs_snapshot_begin(hbmfs_handle writer, const hbmfs_memory *list, int64_t count, uint64_t stream, int64_t timeout_ns,
                             uint64_t *copies, hbmfs_handle *snapshot, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!snapshot || (count > 0 && (!list || !copies)));
    *snapshot = 0;
    return hbmfs_go_snapshot_begin(writer, (hbmfs_memory *)list, count, stream, timeout_ns, copies, snapshot, why);
}

int32_t hbmfs_snapshot_wait(hbmfs_handle snapshot, int64_t timeout_ns, int64_t *took_ns, hbmfs_failure *why) {
    REFUSE_FORKED;
    int64_t took = 0;
    int32_t code = hbmfs_go_snapshot_wait(snapshot, timeout_ns, &took, why);
    if (!code && took_ns) *took_ns = took;
    return code;
}

int32_t hbmfs_snapshot_release(hbmfs_handle snapshot, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_snapshot_release(snapshot, why);
}

int32_t hbmfs_write_begin(hbmfs_handle writer, const char *directory, const hbmfs_write_file *files, int64_t file_count,
                          const hbmfs_write_part *parts, int64_t part_count, uint64_t stream, hbmfs_handle *write, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!directory || !write || (file_count > 0 && !files) || (part_count > 0 && !parts));
    for (int64_t i = 0; i < file_count; i++) REFUSE_NULL(!files[i].name);
    *write = 0;
    return hbmfs_go_write_begin(writer, (char *)directory, (hbmfs_write_file *)files, file_count, (hbmfs_write_part *)parts, part_count,
                                stream, write, why);
}

int32_t hbmfs_write_progress(hbmfs_handle write, int64_t *written, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!written);
    return hbmfs_go_write_progress(write, written, why);
}

int32_t hbmfs_write_wait(hbmfs_handle write, int64_t timeout_ns, hbmfs_write_result *result, uint32_t *sums, int64_t sum_count,
                         hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(sum_count > 0 && !sums);
    if (result && !KNOWN(result->struct_size, hbmfs_write_result, reason)) return fail_size(why);
    hbmfs_write_result full = {0};
    int32_t code = hbmfs_go_write_wait(write, timeout_ns, &full, sums, sum_count, why);
    if (!code && result) GIVE(result, full);
    return code;
}

int32_t hbmfs_kv_open(const hbmfs_kv_options *options, hbmfs_handle *store, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!options || !store);
    if (!KNOWN(options->struct_size, hbmfs_kv_options, libcuda)) return fail_size(why);
    hbmfs_kv_options o = {0};
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    REFUSE_NULL(!o.mount || !o.namespace_);
    if (o.reserved) return fail(why, HBMFS_INVALID, "a reserved field is not 0");
    *store = 0;
    return hbmfs_go_kv_open(&o, store, why);
}

// export_kv.go has the same numbers.
enum { KV_PUT, KV_GET, KV_CONTAINS, KV_PIN, KV_UNPIN, KV_REMOVE };

static int32_t kv_begin(hbmfs_handle store, int32_t what, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!batch || !request);
    if (!KNOWN(batch->struct_size, hbmfs_kv_batch, tokens)) return fail_size(why);
    hbmfs_kv_batch b = {0};
    memcpy(&b, batch, batch->struct_size < sizeof b ? batch->struct_size : sizeof b);
    REFUSE_NULL(b.count > 0 && what != KV_UNPIN && (!b.keys || !b.key_lengths));
    REFUSE_NULL((b.count > 0 && what == KV_UNPIN && !b.tokens) || (b.part_count > 0 && !b.parts));
    *request = 0;
    return hbmfs_go_kv_begin(store, what, &b, request, why);
}

int32_t hbmfs_kv_put_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_PUT, batch, request, why);
}

int32_t hbmfs_kv_get_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_GET, batch, request, why);
}

int32_t hbmfs_kv_contains_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_CONTAINS, batch, request, why);
}

int32_t hbmfs_kv_pin_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_PIN, batch, request, why);
}

int32_t hbmfs_kv_unpin_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_UNPIN, batch, request, why);
}

int32_t hbmfs_kv_remove_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_REMOVE, batch, request, why);
}

int32_t hbmfs_kv_wait(hbmfs_handle request, int64_t timeout_ns, hbmfs_kv_result *result, int32_t *outcomes, uint64_t *tokens, int64_t count,
                      hbmfs_failure *why) {
    REFUSE_FORKED;
    if (result && !KNOWN(result->struct_size, hbmfs_kv_result, moved)) return fail_size(why);
    hbmfs_kv_result full = {0};
    int32_t code = hbmfs_go_kv_wait(request, timeout_ns, &full, outcomes, tokens, outcomes ? count : 0, why);
    if (code != HBMFS_TIMEOUT && result) GIVE(result, full);
    return code;
}

int32_t hbmfs_kv_clear(hbmfs_handle store, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_kv_clear(store, why);
}

int32_t hbmfs_kv_get_stats(hbmfs_handle store, hbmfs_kv_stats *stats, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!stats);
    if (!KNOWN(stats->struct_size, hbmfs_kv_stats, pinned_bytes)) return fail_size(why);
    hbmfs_kv_stats full = {0};
    int32_t code = hbmfs_go_kv_stats(store, &full, why);
    if (!code) GIVE(stats, full);
    return code;
}

int32_t hbmfs_kv_close(hbmfs_handle store, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_kv_close(store, why);
}

const char *hbmfs_kv_outcome_name(int32_t outcome) {
    static const char *const names[] = {"done", "missing", "present", "busy", "no room", "over the limit", "of another length", "damaged", "lost", "failed", "undone"};
    return outcome >= 0 && outcome < (int32_t)(sizeof names / sizeof *names) ? names[outcome] : "unknown outcome";
}
