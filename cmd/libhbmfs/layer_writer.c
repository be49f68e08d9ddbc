// The functions of libhbmfs.h, of checkpoints, memory and writers.
#include "layer.h"

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
    if (verified && !KNOWN(verified->struct_size, hbmfs_verified, damaged)) return hbmfs_fail_size(why);
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
    if (!KNOWN(options->struct_size, hbmfs_writer_options, hbmfs)) return hbmfs_fail_size(why);
    hbmfs_writer_options o = {0};
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (o.reserved) return hbmfs_fail(why, HBMFS_INVALID, "a reserved field is not 0");
    *writer = 0;
    return hbmfs_go_writer_open(&o, writer, why);
}

int32_t hbmfs_writer_get_stats(hbmfs_handle writer, hbmfs_writer_stats *stats, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!stats);
    if (!KNOWN(stats->struct_size, hbmfs_writer_stats, reason)) return hbmfs_fail_size(why);
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
    if (result && !KNOWN(result->struct_size, hbmfs_write_result, reason)) return hbmfs_fail_size(why);
    hbmfs_write_result full = {0};
    int32_t code = hbmfs_go_write_wait(write, timeout_ns, &full, sums, sum_count, why);
    if (!code && result) GIVE(result, full);
    return code;
}
