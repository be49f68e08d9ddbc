// A program that uses libhbmfs as any other would: main TEST DEVICE METHOD LIBCUDA LIBCUFILE ARGUMENTS...
// DEVICE is -1 for the host; LIBCUDA and LIBCUFILE may be empty. It prints nothing and exits 0 when all is well.
#include <string.h>

#include "program.h"

// What other languages write down of the header: a change of these is another ABI.
_Static_assert(sizeof(hbmfs_failure) == 520, "hbmfs_failure");
_Static_assert(sizeof(hbmfs_reader_options) == 104, "hbmfs_reader_options");
_Static_assert(sizeof(hbmfs_reader_info) == 508, "hbmfs_reader_info");
_Static_assert(sizeof(hbmfs_reader_stats) == 352, "hbmfs_reader_stats");
_Static_assert(sizeof(hbmfs_file_info) == 352, "hbmfs_file_info");
_Static_assert(sizeof(hbmfs_draft_file) == 32, "hbmfs_draft_file");
_Static_assert(sizeof(hbmfs_checkpoint_info) == 288, "hbmfs_checkpoint_info");
_Static_assert(sizeof(hbmfs_verified) == 40, "hbmfs_verified");
_Static_assert(sizeof(hbmfs_result) == 320, "hbmfs_result");
_Static_assert(sizeof(hbmfs_writer_options) == 80, "hbmfs_writer_options");
_Static_assert(sizeof(hbmfs_writer_stats) == 328, "hbmfs_writer_stats");
_Static_assert(sizeof(hbmfs_memory) == 24, "hbmfs_memory");
_Static_assert(sizeof(hbmfs_write_file) == 24, "hbmfs_write_file");
_Static_assert(sizeof(hbmfs_write_part) == 32, "hbmfs_write_part");
_Static_assert(sizeof(hbmfs_write_result) == 336, "hbmfs_write_result");

_Static_assert(sizeof(hbmfs_kv_options) == 64, "hbmfs_kv_options");
_Static_assert(sizeof(hbmfs_kv_batch) == 72, "hbmfs_kv_batch");
_Static_assert(sizeof(hbmfs_kv_moved) == 40, "hbmfs_kv_moved");
_Static_assert(sizeof(hbmfs_kv_result) == 56, "hbmfs_kv_result");
_Static_assert(sizeof(hbmfs_kv_stats) == 368, "hbmfs_kv_stats");

hbmfs_handle open_reader(const struct device *d) {
    hbmfs_reader_options o = {.struct_size = sizeof o, .device = d->index, .method = d->method, .threads = 3,
                              .arena_bytes = 4 << 20, .slot_bytes = 64 << 10, .libcuda = d->libcuda, .libcufile = d->libcufile};
    hbmfs_handle reader;
    OK(hbmfs_reader_open(&o, &reader, &why));
    return reader;
}

struct memory get_memory(hbmfs_handle reader, const struct device *d, int64_t length) {
    struct memory m = {.length = length};
    if (d->index == HBMFS_HOST) m.at = (uint64_t)(uintptr_t)malloc(length);
    else OK(hbmfs_memory_alloc(reader, length, &m.handle, &m.at, &why));
    return m;
}

void get_bytes(const struct memory *m, const struct device *d, void *to, int64_t length) {
    if (d->index == HBMFS_HOST) memcpy(to, (void *)(uintptr_t)m->at, length);
    else OK(hbmfs_memory_copy_out(m->handle, 0, length, to, &why));
}

void free_memory(struct memory *m, const struct device *d) {
    if (d->index == HBMFS_HOST) free((void *)(uintptr_t)m->at);
    else OK(hbmfs_memory_free(m->handle, &why));
}

char *whole_file(const char *path, int64_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) DIE("%s: cannot be read", path);
    *size = ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    if (fread(data, 1, *size, f) != (size_t)*size) DIE("%s: a short read", path);
    fclose(f);
    return data;
}

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static const char *or_null(const char *text) { return *text ? text : NULL; }

int main(int argc, char **argv) {
    if (argc < 7) DIE("TEST DEVICE METHOD LIBCUDA LIBCUFILE FILE...");
    const char *test = argv[1];
    struct device d = {atoi(argv[2]), argv[3], or_null(argv[4]), or_null(argv[5])};
    if (!strcmp(test, "signals")) { signals(&d, argv[6]); return 0; } // it looks before anything is called
    if (hbmfs_abi() != HBMFS_ABI || !hbmfs_version()[0]) DIE("ABI %u, version %s", hbmfs_abi(), hbmfs_version());
    if (!strcmp(test, "compare")) compare(&d, argv + 6, argc - 6);
    else if (!strcmp(test, "threads")) threads(&d, argv[6]);
    else if (!strcmp(test, "errors")) errors(&d, argv[6]);
    else if (!strcmp(test, "checkpoint")) checkpoint(&d, argv[6]);
    else if (!strcmp(test, "volume")) volume(&d, argv[6]);
    else if (!strcmp(test, "cancel")) cancel(&d, argv[6]);
    else if (!strcmp(test, "leaks")) leaks(&d, argv[6], atol(argv[7]));
    else if (!strcmp(test, "forks")) forks(&d, argv[6]);
    else if (!strcmp(test, "writes")) writes(&d, argv[6], argv[7]);
    else if (!strcmp(test, "kv")) kv(&d, argv[6]);
    else DIE("there is no test %s", test);
    return 0;
}
