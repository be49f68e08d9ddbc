// A store of a KV volume, from C.
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

enum { BLOCKS = 40, LONGEST = 100000 };

static void refusals(hbmfs_kv_options o, hbmfs_handle store, hbmfs_memory m) {
    hbmfs_handle h;
    hbmfs_kv_options bad = o;
    bad.struct_size = 8;
    WANT(HBMFS_INVALID, hbmfs_kv_open(&bad, &h, &why));
    bad = o, bad.flags = 64;
    WANT(HBMFS_INVALID, hbmfs_kv_open(&bad, &h, &why));
    bad = o, bad.block_bytes = 77;
    WANT(HBMFS_INVALID, hbmfs_kv_open(&bad, &h, &why));
    bad = o, bad.mount = "/proc";
    WANT(HBMFS_UNAVAILABLE, hbmfs_kv_open(&bad, &h, &why));
    bad = o, bad.namespace_ = NULL;
    WANT(HBMFS_INVALID, hbmfs_kv_open(&bad, &h, &why));
    int32_t length = 65;
    uint8_t key[65] = "k";
    hbmfs_kv_batch b = {.struct_size = sizeof b, .count = 1, .keys = key, .key_lengths = &length, .parts = &m, .part_count = 1, .stream = HBMFS_NO_STREAM};
    WANT(HBMFS_INVALID, hbmfs_kv_put_begin(store, &b, &h, &why));
    length = 1, b.part_count = 0;
    WANT(HBMFS_INVALID, hbmfs_kv_put_begin(store, &b, &h, &why));
    b.part_count = 1, b.eventfd = 9999;
    WANT(HBMFS_INVALID, hbmfs_kv_put_begin(store, &b, &h, &why));
    b.eventfd = 0, b.keys = NULL;
    WANT(HBMFS_INVALID, hbmfs_kv_get_begin(store, &b, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_kv_unpin_begin(store, &b, &h, &why));
    WANT(HBMFS_INVALID, hbmfs_kv_wait(store, -1, NULL, NULL, NULL, 0, &why));
    WANT(HBMFS_INVALID, hbmfs_kv_clear(1 << 20, &why));
    pid_t child = fork();
    if (!child) _exit(hbmfs_kv_clear(store, NULL) == HBMFS_FORKED && hbmfs_kv_close(store, NULL) == HBMFS_FORKED ? 0 : 1);
    int status;
    if (waitpid(child, &status, 0) != child || status) DIE("a forked child is not refused");
}

static void want(const int32_t *outcomes, int n, int32_t wanted) {
    for (int i = 0; i < n; i++)
        if (outcomes[i] != wanted) DIE("block %d is %s, want %s", i, hbmfs_kv_outcome_name(outcomes[i]), hbmfs_kv_outcome_name(wanted));
}

void kv(const struct device *d, const char *mount) {
    hbmfs_kv_options o = {.struct_size = sizeof o, .device = d->index, .mount = mount, .namespace_ = "c", .block_bytes = LONGEST,
                          .flags = HBMFS_KV_CREATE | HBMFS_KV_WRITE | HBMFS_KV_SUMS, .threads = 3, .libcuda = d->libcuda};
    hbmfs_handle store, request, reader = open_reader(d);
    OK(hbmfs_kv_open(&o, &store, &why));
    struct memory device = get_memory(reader, d, LONGEST);
    uint8_t keys[BLOCKS * 8], *host = malloc(BLOCKS * LONGEST), *back = calloc(BLOCKS, LONGEST);
    int32_t lengths[BLOCKS], outcomes[BLOCKS];
    int64_t counts[BLOCKS];
    uint64_t tokens[BLOCKS], random = 7, told = 0;
    hbmfs_memory parts[2 * BLOCKS], to[BLOCKS];
    for (int i = 0; i < BLOCKS * LONGEST; i++) host[i] = next_random(&random);
    for (int i = 0; i < BLOCKS; i++) {
        memcpy(keys + 8 * i, "key-0000", 8);
        keys[8 * i + 7] = i, lengths[i] = 8, counts[i] = 2;
        int64_t n = LONGEST - 7 * i;
        parts[2 * i] = (hbmfs_memory){.address = (uint64_t)(uintptr_t)(host + i * LONGEST), .length = 1000};
        parts[2 * i + 1] = (hbmfs_memory){.address = (uint64_t)(uintptr_t)(host + i * LONGEST + 1000), .length = n - 1000};
        to[i] = (hbmfs_memory){.address = (uint64_t)(uintptr_t)(back + i * LONGEST), .length = n};
    }
    refusals(o, store, parts[0]);
    int fd = eventfd(0, 0);
    hbmfs_kv_batch b = {.struct_size = sizeof b, .eventfd = fd, .count = BLOCKS, .keys = keys, .key_lengths = lengths, .parts = parts,
                        .part_counts = counts, .part_count = 2 * BLOCKS, .stream = HBMFS_NO_STREAM};
    hbmfs_kv_result r = {.struct_size = sizeof r};
    OK(hbmfs_kv_put_begin(store, &b, &request, &why));
    if (read(fd, &told, 8) != 8 || told != 1) DIE("the eventfd has %lu", (unsigned long)told);
    OK(hbmfs_kv_wait(request, 0, &r, outcomes, NULL, BLOCKS, &why));
    want(outcomes, BLOCKS, HBMFS_KV_DONE);
    if (r.done != BLOCKS || r.moved.host != BLOCKS * LONGEST - 7 * BLOCKS * (BLOCKS - 1) / 2) DIE("%ld blocks, %ld bytes", (long)r.done, (long)r.moved.host);
    WANT(HBMFS_CLOSED, hbmfs_kv_wait(request, 0, NULL, NULL, NULL, 0, &why));
    b.eventfd = 0;
    b.parts = to, b.part_counts = NULL, b.part_count = BLOCKS;
    OK(hbmfs_kv_get_begin(store, &b, &request, &why));
    OK(hbmfs_kv_wait(request, -1, NULL, outcomes, NULL, BLOCKS, &why));
    want(outcomes, BLOCKS, HBMFS_KV_DONE);
    for (int i = 0; i < BLOCKS; i++)
        if (memcmp(host + i * LONGEST, back + i * LONGEST, to[i].length)) DIE("block %d came back with other bytes", i);

    // The first one into memory of the device.
    hbmfs_memory hbm = {.address = device.at, .length = LONGEST, .on_device = d->index != HBMFS_HOST};
    b.count = 1, b.parts = &hbm, b.part_count = 1;
    OK(hbmfs_kv_get_begin(store, &b, &request, &why));
    OK(hbmfs_kv_wait(request, -1, NULL, outcomes, NULL, 1, &why));
    want(outcomes, 1, HBMFS_KV_DONE);
    get_bytes(&device, d, back, LONGEST);
    if (memcmp(host, back, LONGEST)) DIE("other bytes came to the device");

    b.count = BLOCKS;
    OK(hbmfs_kv_pin_begin(store, &b, &request, &why));
    OK(hbmfs_kv_wait(request, -1, NULL, outcomes, tokens, BLOCKS, &why));
    want(outcomes, BLOCKS, HBMFS_KV_DONE);
    b.tokens = tokens;
    for (int again = 0; again < 2; again++) {
        OK(hbmfs_kv_unpin_begin(store, &b, &request, &why));
        OK(hbmfs_kv_wait(request, -1, NULL, outcomes, NULL, BLOCKS, &why));
        want(outcomes, BLOCKS, again ? HBMFS_KV_MISSING : HBMFS_KV_DONE);
    }
    b.count = 2;
    OK(hbmfs_kv_remove_begin(store, &b, &request, &why));
    OK(hbmfs_kv_wait(request, -1, NULL, outcomes, NULL, 2, &why));
    want(outcomes, 2, HBMFS_KV_DONE);
    b.count = BLOCKS;
    OK(hbmfs_kv_contains_begin(store, &b, &request, &why));
    OK(hbmfs_kv_wait(request, -1, &r, outcomes, NULL, BLOCKS, &why));
    want(outcomes, 2, HBMFS_KV_MISSING);
    want(outcomes + 2, BLOCKS - 2, HBMFS_KV_DONE);
    OK(hbmfs_kv_contains_begin(store, &b, &request, &why));
    OK(hbmfs_cancel(request, -1, &why));
    OK(hbmfs_kv_clear(store, &why));
    hbmfs_kv_stats stats = {.struct_size = sizeof stats};
    OK(hbmfs_kv_get_stats(store, &stats, &why));
    if (stats.stored != BLOCKS || stats.loaded != BLOCKS + 1 || stats.block_bytes != LONGEST || stats.connections != 1) DIE("stats are wrong");
    OK(hbmfs_kv_close(store, &why));
    b.count = 1;
    WANT(HBMFS_CLOSED, hbmfs_kv_put_begin(store, &b, &request, &why));
    close(fd);
    free_memory(&device, d);
    OK(hbmfs_reader_close(reader, &why));
    free(host);
    free(back);
}
