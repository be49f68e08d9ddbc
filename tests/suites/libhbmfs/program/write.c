// Files are written of memory of the device and of the host, and of a snapshot; what cannot be is refused with its code.
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

static void same(const char *directory, const char *name, const char *want, int64_t n) {
    char path[4096];
    int64_t size;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    char *got = whole_file(path, &size);
    if (size != n || memcmp(got, want, n)) DIE("%s has other bytes", path);
    free(got);
}

static hbmfs_handle open_writer(const struct device *d, int64_t arena) {
    hbmfs_writer_options o = {.struct_size = sizeof o, .device = d->index, .threads = 2, .arena_bytes = arena, .libcuda = d->libcuda, .libcufile = d->libcufile};
    hbmfs_handle writer;
    OK(hbmfs_writer_open(&o, &writer, &why));
    OK(hbmfs_writer_wait_ready(writer, -1, &why));
    return writer;
}

static void refusals(const struct device *d, hbmfs_handle writer, const char *directory, hbmfs_memory m) {
    hbmfs_handle h;
    hbmfs_writer_options o = {.struct_size = sizeof o, .device = d->index, .libcuda = d->libcuda};
    WANT(HBMFS_INVALID, hbmfs_writer_open(NULL, &h, &why));
    o.method = "compat";
    WANT(HBMFS_INVALID, hbmfs_writer_open(&o, &h, &why));
    o.method = NULL;
    o.reserved = 1;
    WANT(HBMFS_INVALID, hbmfs_writer_open(&o, &h, &why));
    o.reserved = 0;
    o.arena_bytes = (int64_t)1 << 45;
    WANT(HBMFS_OUT_OF_MEMORY, hbmfs_writer_open(&o, &h, &why));
    o.struct_size = 8;
    WANT(HBMFS_INVALID, hbmfs_writer_open(&o, &h, &why));
    hbmfs_write_part part = {.memory = m};
    hbmfs_write_file file = {"new", m.length, 1}, there = {"both", 1, 0}, path = {"a/b", 1, 0}, many = {"new", 1, 2};
    WANT(HBMFS_INVALID, hbmfs_write_begin(writer, directory, &path, 1, NULL, 0, 0, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_write_begin(writer, directory, &many, 1, &part, 1, 0, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_write_begin(writer, directory, &there, 1, &part, 1, 0, &h, &why)); // a part of no file
    WANT(HBMFS_INVALID, hbmfs_write_begin(writer, directory, &file, -1, &part, 1, 0, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_write_begin(writer, NULL, &file, 1, &part, 1, 0, &h, &why));
    WANT(HBMFS_WRITE, hbmfs_write_begin(writer, "/nowhere", &file, 1, &part, 1, HBMFS_NO_STREAM, &h, &why));
    if (h) DIE("a handle of what was refused");
    part.memory.reserved = 1;
    WANT(HBMFS_INVALID, hbmfs_write_begin(writer, directory, &file, 1, &part, 1, 0, &h, &why));
    hbmfs_failure why = {0};
    hbmfs_write_begin(writer, directory, &there, 1, NULL, 0, 0, &h, &why);
    if (hbmfs_write_wait(h, -1, NULL, NULL, 0, &why) != HBMFS_WRITE || why.os_errno != EEXIST) DIE("a file that is there: %s", why.text);
    WANT(HBMFS_CLOSED, hbmfs_write_wait(h, -1, NULL, NULL, 0, &why));
    uint64_t copy;
    hbmfs_memory large = {m.address, (int64_t)1 << 40, 0, 0};
    WANT(HBMFS_TOO_LARGE, hbmfs_snapshot_begin(writer, &large, 1, 0, 0, &copy, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_snapshot_begin(writer, NULL, 1, 0, 0, &copy, &h, &why));
    hbmfs_memory nowhere[] = {{.address = 1, .length = 8}, {.address = UINT64_MAX, .length = 8}, {.address = m.address, .length = INT64_MAX}};
    for (int i = 0; i < 3; i++) WANT(HBMFS_INVALID, hbmfs_snapshot_begin(writer, &nowhere[i], 1, 0, 0, &copy, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_snapshot_release(writer, &why));
}

static void forked(hbmfs_handle writer, hbmfs_handle snapshot) {
    pid_t child = fork();
    if (!child) {
        hbmfs_handle h;
        hbmfs_writer_options o = {.struct_size = sizeof o, .device = HBMFS_HOST};
        WANT(HBMFS_FORKED, hbmfs_writer_open(&o, &h, &why));
        WANT(HBMFS_FORKED, hbmfs_snapshot_begin(writer, NULL, 0, 0, 0, NULL, &h, &why));
        WANT(HBMFS_FORKED, hbmfs_snapshot_wait(snapshot, 0, NULL, &why));
        WANT(HBMFS_FORKED, hbmfs_snapshot_release(snapshot, &why));
        WANT(HBMFS_FORKED, hbmfs_write_begin(writer, "/tmp", NULL, 0, NULL, 0, 0, &h, &why));
        WANT(HBMFS_FORKED, hbmfs_write_wait(1, 0, NULL, NULL, 0, &why));
        WANT(HBMFS_FORKED, hbmfs_write_progress(1, NULL, &why));
        WANT(HBMFS_FORKED, hbmfs_writer_wait_ready(writer, 0, &why));
        WANT(HBMFS_FORKED, hbmfs_writer_get_stats(writer, NULL, &why));
        WANT(HBMFS_FORKED, hbmfs_writer_close(writer, &why));
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) DIE("the child ended with %d", status);
}

void writes(const struct device *d, const char *source, const char *directory) {
    int64_t n;
    char *bytes = whole_file(source, &n);
    hbmfs_handle reader = open_reader(d), file, writer = open_writer(d, 2 * n + (1 << 20)), snapshot, write;
    struct memory m = get_memory(reader, d, n);
    OK(hbmfs_file_open(reader, source, &file, &why));
    OK(hbmfs_read(file, m.at, n, 0, n, HBMFS_NO_STREAM, NULL, &why));
    hbmfs_memory list[2] = {{m.at, n, d->index != HBMFS_HOST, 0}, {(uint64_t)(uintptr_t)bytes, n, 0, 0}};
    uint64_t copies[2];
    int64_t took = -1;
    OK(hbmfs_snapshot_begin(writer, list, 2, 0, -1, copies, &snapshot, &why));
    OK(hbmfs_snapshot_wait(snapshot, -1, &took, &why));
    if (took < 0 || memcmp((void *)(uintptr_t)copies[0], bytes, n) || memcmp((void *)(uintptr_t)copies[1], bytes, n)) DIE("the snapshot has other bytes");
    hbmfs_write_file files[2] = {{"both", 2 * n, 2}, {"copy", n + 9, 1}};
    hbmfs_write_part parts[3] = {{0, list[0]}, {n, list[1]}, {9, {copies[0], n, 0, 0}}};
    OK(hbmfs_write_begin(writer, directory, files, 2, parts, 3, 0, &write, &why));
    int64_t count = (2 * n + HBMFS_CHUNK - 1) / HBMFS_CHUNK + (n + 9 + HBMFS_CHUNK - 1) / HBMFS_CHUNK, written;
    uint32_t *sums = calloc(count + 1, sizeof *sums);
    OK(hbmfs_write_progress(write, &written, &why));
    hbmfs_write_result r = {.struct_size = sizeof r};
    WANT(HBMFS_INVALID, hbmfs_write_wait(write, -1, &r, sums, count + 1, &why));
    OK(hbmfs_write_wait(write, -1, &r, sums, count, &why));
    if (r.moved.direct + r.moved.mapped + r.moved.staged + r.moved.buffered != 3 * n + 9 || !r.path[0] || !r.reason[0] || r.took_ns <= 0) DIE("path %s, reason %s", r.path, r.reason);
    if (!sums[0] || !sums[count - 1]) DIE("a sum is missing"); // with these bytes none is 0
    char *twice = malloc(2 * n), *behind = calloc(1, n + 9);
    memcpy(twice, bytes, n);
    memcpy(twice + n, bytes, n);
    memcpy(behind + 9, bytes, n);
    same(directory, "both", twice, 2 * n);
    same(directory, "copy", behind, n + 9);
    hbmfs_writer_stats s = {.struct_size = sizeof s};
    OK(hbmfs_writer_get_stats(writer, &s, &why));
    if (!s.ready || s.writes != 1 || s.arena_bytes < 2 * n) DIE("ready %d, writes %ld", s.ready, (long)s.writes);
    refusals(d, writer, directory, list[1]);
    forked(writer, snapshot);
    files[0].name = "cancelled";
    OK(hbmfs_write_begin(writer, directory, files, 1, parts, 2, 0, &write, &why));
    OK(hbmfs_cancel(write, -1, &why));
    OK(hbmfs_writer_close(writer, &why));
    WANT(HBMFS_CLOSED, hbmfs_writer_close(writer, &why));
    if (memcmp((void *)(uintptr_t)copies[0], bytes, n)) DIE("the snapshot went with its writer");
    OK(hbmfs_snapshot_release(snapshot, &why));
    WANT(HBMFS_CLOSED, hbmfs_snapshot_release(snapshot, &why));
    free_memory(&m, d);
    OK(hbmfs_reader_close(reader, &why));
    free(twice);
    free(behind);
    free(sums);
    free(bytes);
}
