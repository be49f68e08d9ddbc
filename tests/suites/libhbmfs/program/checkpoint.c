// A checkpoint is begun, published, listed, verified and removed; each mistake on the way has its code.
#define _GNU_SOURCE
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

static void put(const char *directory, const char *name, const char *text) {
    char path[5000];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    if (!f || fputs(text, f) < 0 || fclose(f)) DIE("%s cannot be written", path);
}

static void refused_in_child(hbmfs_handle draft, const char *path) {
    pid_t child = fork();
    if (!child) {
        hbmfs_handle other;
        WANT(HBMFS_FORKED, hbmfs_draft_begin(path, 0, 1, &other, &why));
        WANT(HBMFS_FORKED, hbmfs_draft_publish(draft, NULL, 0, &why));
        WANT(HBMFS_FORKED, hbmfs_draft_drop(draft, &why));
        WANT(HBMFS_FORKED, hbmfs_draft_attach(path, &other, &why));
        WANT(HBMFS_FORKED, hbmfs_draft_write_begin(1, draft, NULL, 0, NULL, 0, HBMFS_NO_STREAM, &other, &why));
        WANT(HBMFS_FORKED, hbmfs_verify_begin(path, 0, &other, &why));
        WANT(HBMFS_FORKED, hbmfs_checkpoint_remove(path, &why));
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) DIE("the child ended with status %#x", status);
}

static void verify(const char *path, int32_t want, int64_t damaged) {
    hbmfs_handle verification;
    hbmfs_verified v = {.struct_size = 3};
    OK(hbmfs_verify_begin(path, 2, &verification, &why));
    WANT(HBMFS_INVALID, hbmfs_verify_wait(verification, -1, &v, &why));
    v.struct_size = sizeof v;
    WANT(want, hbmfs_verify_wait(verification, -1, &v, &why));
    if (v.done != 9 || v.total != 9 || v.files != 1 || v.damaged != damaged) DIE("%ld of %ld bytes of %ld files, %ld damaged", v.done, v.total, v.files, v.damaged);
    WANT(HBMFS_CLOSED, hbmfs_verify_wait(verification, -1, &v, &why));
    WANT(HBMFS_CLOSED, hbmfs_verify_cancel(verification, -1, &why));
    OK(hbmfs_verify_begin(path, 0, &verification, &why));
    OK(hbmfs_verify_cancel(verification, -1, &why));
}

void checkpoint(const struct device *d, const char *directory) {
    (void)d;
    char path[4096], in[5000], small[4], names[100];
    snprintf(path, sizeof path, "%s/step_1", directory);
    hbmfs_handle draft, other;
    WANT(HBMFS_INVALID, hbmfs_draft_begin(NULL, 0, 1, &draft, &why));
    WANT(HBMFS_INVALID, hbmfs_draft_begin(path, 1, 1, &draft, &why));
    WANT(HBMFS_NOT_FOUND, hbmfs_draft_attach(path, &other, &why));
    OK(hbmfs_draft_begin(path, 2, 4, &draft, &why));
    WANT(HBMFS_BUSY, hbmfs_draft_begin(path, 2, 4, &other, &why));
    if (other) DIE("a handle of what was refused");
    WANT(HBMFS_TOO_LARGE, hbmfs_draft_directory(path, small, sizeof small, &why));
    OK(hbmfs_draft_directory(path, in, sizeof in, &why));
    int32_t is = 7;
    OK(hbmfs_draft_is_in_volume(draft, &is, &why));
    if (is) DIE("a draft in a directory is one of a volume");
    OK(hbmfs_checkpoint_in_volume(path, &is, &why));
    if (is) DIE("%s lies in a volume", path);
    OK(hbmfs_draft_attach(path, &other, &why));
    WANT(HBMFS_INVALID, hbmfs_draft_publish(other, NULL, 0, &why));
    OK(hbmfs_draft_drop(other, &why)); // the draft stays
    WANT(HBMFS_BUSY, hbmfs_draft_begin(path, 2, 4, &other, &why));
    refused_in_child(draft, path);
    put(in, "weights", "123456789");
    uint32_t sum = 0xe3069283; // of "123456789", as RFC 3720 has it
    hbmfs_draft_file file = {.name = "weights", .size = 9, .crc32c = &sum, .sums = 1};
    WANT(HBMFS_INVALID, hbmfs_draft_publish(draft, NULL, 1, &why));
    WANT(HBMFS_INVALID, hbmfs_draft_publish(draft, &file, -1, &why));
    WANT(HBMFS_INVALID, hbmfs_draft_publish(draft, NULL, 0, &why));
    file.size = 8;
    WANT(HBMFS_INVALID, hbmfs_draft_publish(draft, &file, 1, &why));
    file.size = 9;
    OK(hbmfs_draft_publish(draft, &file, 1, &why));
    WANT(HBMFS_CLOSED, hbmfs_draft_drop(draft, &why));
    WANT(HBMFS_EXISTS, hbmfs_draft_begin(path, 0, 1, &other, &why));

    hbmfs_checkpoint_info info[2];
    int64_t count;
    OK(hbmfs_checkpoint_list(directory, NULL, 0, &count, &why));
    if (count != 1) DIE("%ld checkpoints", count);
    OK(hbmfs_checkpoint_list(directory, info, 2, &count, &why));
    if (count != 1 || strcmp(info->name, "step_1") || info->part != 2 || info->parts != 4 || info->files != 1 || info->size != 9 || info->created <= 0)
        DIE("%s is part %d of %d with %ld bytes in %ld files", info->name, info->part, info->parts, info->size, info->files);
    WANT(HBMFS_NOT_FOUND, hbmfs_checkpoint_list("/nowhere/at/all", info, 2, &count, &why));
    verify(path, HBMFS_OK, 0);
    put(path, "weights", "123456780");
    verify(path, HBMFS_FORMAT, 1);

    snprintf(in, sizeof in, "%s/.step_2.hbmfs.tmp", directory);
    if (mkdir(in, 0700)) DIE("%s cannot be made", in);
    OK(hbmfs_checkpoint_clean(directory, names, sizeof names, &count, &why));
    if (count <= 1 || (count <= (int64_t)sizeof names && strcmp(names, in))) DIE("%s was removed, want %s", names, in);
    OK(hbmfs_checkpoint_remove(path, &why));
    WANT(HBMFS_NOT_FOUND, hbmfs_checkpoint_remove(path, &why));
    OK(hbmfs_draft_begin(path, 0, 1, &draft, &why));
    OK(hbmfs_draft_drop(draft, &why));
    OK(hbmfs_checkpoint_list(directory, info, 2, &count, &why));
    if (count) DIE("%ld checkpoints in the end", count);
}

static hbmfs_draft_file written(hbmfs_handle writer, hbmfs_handle draft, const char *name, char *data, int64_t n, uint32_t *sum) {
    hbmfs_write_file file = {name, n, 1};
    hbmfs_write_part part = {.memory = {(uint64_t)data, n, 0, 0}};
    hbmfs_handle write;
    OK(hbmfs_draft_write_begin(writer, draft, &file, 1, &part, 1, HBMFS_NO_STREAM, &write, &why));
    OK(hbmfs_write_wait(write, -1, NULL, sum, 1, &why));
    return (hbmfs_draft_file){.name = name, .size = n, .crc32c = sum, .sums = 1};
}

// A draft of a checkpoint volume: its files are written by handles that began it and that attached to it.
void volume(const struct device *d, const char *directory) {
    char path[4096], in[5000];
    snprintf(path, sizeof path, "%s/step_1", directory);
    snprintf(in, sizeof in, "%s/run/step_1", directory);
    int32_t is = 0;
    OK(hbmfs_checkpoint_in_volume(path, &is, &why));
    if (is != 1) DIE("%s lies in no volume", path);
    WANT(HBMFS_INVALID, hbmfs_checkpoint_in_volume(in, &is, &why));
    WANT(HBMFS_INVALID, hbmfs_checkpoint_in_volume(NULL, &is, &why));
    hbmfs_handle draft, other, writer;
    WANT(HBMFS_STALE, hbmfs_draft_attach(path, &other, &why));
    OK(hbmfs_draft_begin(path, 0, 1, &draft, &why));
    WANT(HBMFS_BUSY, hbmfs_draft_begin(path, 0, 1, &other, &why));
    OK(hbmfs_draft_is_in_volume(draft, &is, &why));
    if (is != 1) DIE("the draft is none of the volume");
    OK(hbmfs_draft_attach(path, &other, &why));
    refused_in_child(draft, path);
    hbmfs_writer_options o = {.struct_size = sizeof o, .device = d->index, .threads = 2};
    OK(hbmfs_writer_open(&o, &writer, &why));
    hbmfs_handle write;
    WANT(HBMFS_INVALID, hbmfs_draft_write_begin(writer, writer, NULL, 0, NULL, 0, HBMFS_NO_STREAM, &write, &why));
    uint32_t sums[2];
    char one[] = "123456789", two[] = "two";
    hbmfs_draft_file files[2];
    files[0] = written(writer, draft, "weights", one, 9, &sums[0]);
    files[1] = written(writer, other, "sub/two", two, 3, &sums[1]);
    if (sums[0] != 0xe3069283) DIE("the sum is %#x", sums[0]);
    hbmfs_write_file again = {"weights", 9, 0};
    OK(hbmfs_draft_write_begin(writer, draft, &again, 1, NULL, 0, HBMFS_NO_STREAM, &write, &why));
    WANT(HBMFS_EXISTS, hbmfs_write_wait(write, -1, NULL, NULL, 0, &why));
    OK(hbmfs_draft_drop(other, &why)); // which leaves the draft
    WANT(HBMFS_INVALID, hbmfs_draft_publish(draft, files, 1, &why));
    OK(hbmfs_draft_publish(draft, files, 2, &why));
    WANT(HBMFS_CLOSED, hbmfs_draft_drop(draft, &why));
    WANT(HBMFS_EXISTS, hbmfs_draft_begin(path, 0, 1, &other, &why));
    hbmfs_handle verification;
    hbmfs_verified v = {.struct_size = sizeof v};
    OK(hbmfs_verify_begin(path, 0, &verification, &why));
    OK(hbmfs_verify_wait(verification, -1, &v, &why));
    if (v.files != 2 || v.total != 12) DIE("%ld bytes of %ld files", v.total, v.files);
    OK(hbmfs_checkpoint_remove(path, &why));
    OK(hbmfs_draft_begin(path, 0, 1, &draft, &why));
    OK(hbmfs_draft_drop(draft, &why));
    OK(hbmfs_writer_close(writer, &why));
}
