// What cannot be is refused with its code, and nothing is left behind.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

static void options(const struct device *d) {
    hbmfs_handle reader;
    hbmfs_reader_options o = {.struct_size = sizeof o, .device = d->index, .libcuda = d->libcuda, .libcufile = d->libcufile};
    WANT(HBMFS_INVALID, hbmfs_reader_open(NULL, &reader, &why));
    WANT(HBMFS_INVALID, hbmfs_reader_open(&o, NULL, &why));
    o.struct_size = 0;
    WANT(HBMFS_INVALID, hbmfs_reader_open(&o, &reader, &why));
    o.struct_size = sizeof o;
    o.method = "teleport";
    WANT(HBMFS_INVALID, hbmfs_reader_open(&o, &reader, &why));
    o.method = NULL;
    o.device = -7;
    WANT(HBMFS_INVALID, hbmfs_reader_open(&o, &reader, &why));
    o.device = 99;
    o.libcuda = d->libcuda ? d->libcuda : "/nowhere/libcuda.so"; // on the host there may be no driver at all
    WANT(HBMFS_NO_DEVICE, hbmfs_reader_open(&o, &reader, &why));
    o.device = HBMFS_HOST;
    o.require = "mapped";
    WANT(HBMFS_UNAVAILABLE, hbmfs_reader_open(&o, &reader, &why));
    o.require = NULL;
    o.method = "mapped"; // a wish is not an order, and what became of it is told
    OK(hbmfs_reader_open(&o, &reader, &why));
    hbmfs_reader_info info = {.struct_size = sizeof info};
    OK(hbmfs_reader_get_info(reader, &info, &why));
    if (strcmp(info.method, "auto") || !info.note[0] || strcmp(info.name, "host")) DIE("method %s, note '%s', name %s", info.method, info.note, info.name);
    OK(hbmfs_reader_close(reader, &why));
    o.method = NULL;
    if (d->index == HBMFS_HOST) return;
    o.device = d->index;
    o.arena_bytes = (int64_t)1 << 45;
    WANT(HBMFS_OUT_OF_MEMORY, hbmfs_reader_open(&o, &reader, &why));
}

static void handles(hbmfs_handle reader, hbmfs_handle file, struct memory *m) {
    hbmfs_handle request;
    hbmfs_reader_info info = {.struct_size = sizeof info};
    WANT(HBMFS_INVALID, hbmfs_reader_get_info(0, &info, &why));
    WANT(HBMFS_INVALID, hbmfs_reader_get_info(1u << 30, &info, &why));
    WANT(HBMFS_INVALID, hbmfs_reader_get_info(file, &info, &why));
    WANT(HBMFS_INVALID, hbmfs_file_close(reader, &why));
    WANT(HBMFS_INVALID, hbmfs_wait(file, 0, NULL, &why));
    WANT(HBMFS_INVALID, hbmfs_read_begin(reader, m->at, m->length, 0, 1, 0, &request, &why));
    if (request) DIE("a handle of what was refused");
    info.struct_size = 3;
    WANT(HBMFS_INVALID, hbmfs_reader_get_info(reader, &info, &why));
    if (hbmfs_reader_get_info(0, NULL, NULL) != HBMFS_INVALID) DIE("NULL was taken"); // without a place for the reason
}

static void ranges(hbmfs_handle file, struct memory *m, int64_t size) {
    hbmfs_handle request;
    int64_t bad[][2] = {{-1, 1}, {size, 1}, {size + 1, 0}, {0, size + 1}, {0, -1}, {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MIN, INT64_MIN}};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        WANT(HBMFS_OUT_OF_RANGE, hbmfs_read_begin(file, m->at, INT64_MAX / 2, bad[i][0], bad[i][1], 0, &request, &why));
            WANT(HBMFS_OUT_OF_RANGE, hbmfs_prefetch(file, &bad[i][0], &bad[i][1], 1, &why));
    }
    WANT(HBMFS_INVALID, hbmfs_read_begin(file, m->at, 9, 0, 10, 0, &request, &why));
    WANT(HBMFS_INVALID, hbmfs_read_begin(file, m->at, -1, 0, 10, 0, &request, &why));
    WANT(HBMFS_INVALID, hbmfs_read_begin(file, 0, 10, 0, 10, 0, &request, &why));
    int64_t zero = 0;
    WANT(HBMFS_INVALID, hbmfs_gather_begin(file, m->at, m->length, &zero, 1, 9, HBMFS_U16_TO_I64, 0, &request, &why));
    WANT(HBMFS_INVALID, hbmfs_gather_begin(file, m->at, m->length, &zero, 1, 8, HBMFS_I32_TO_I64 + 1, 0, &request, &why));
    WANT(HBMFS_INVALID, hbmfs_gather_begin(file, m->at, m->length, &zero, -1, 8, HBMFS_KEEP, 0, &request, &why));
    WANT(HBMFS_INVALID, hbmfs_gather_begin(file, m->at, -1, &zero, 0, 8, HBMFS_KEEP, 0, &request, &why));
    OK(hbmfs_gather(file, 0, 0, NULL, 0, 8, HBMFS_KEEP, 0, NULL, &why)); // nothing is no mistake
    int64_t one = 1, ten = 10, negative = -1, huge = INT64_MAX, sources = 1;
    hbmfs_batch right = {.struct_size = sizeof right, .element = 1, .files = &file, .file_count = 1, .count = 1, .starts = &zero, .length = 1, .dst = m->at, .dst_length = 10}, batch;
#define BATCH(code, ...) do { batch = right; __VA_ARGS__; WANT(code, batch_brought(&batch, &request, &why)); } while (0)
    BATCH(HBMFS_INVALID, batch.struct_size = 8);
    BATCH(HBMFS_INVALID, batch.files = NULL);
    BATCH(HBMFS_INVALID, batch.file_count = -1);
    BATCH(HBMFS_INVALID, batch.file_count = 0);
    BATCH(HBMFS_INVALID, batch.element = 0);
    BATCH(HBMFS_INVALID, batch.count = -1);
    BATCH(HBMFS_INVALID, batch.count = INT64_MAX);
    BATCH(HBMFS_INVALID, batch.starts = NULL);
    BATCH(HBMFS_INVALID, batch.sources = (int32_t *)&sources);
    BATCH(HBMFS_INVALID, batch.places = &ten);
    BATCH(HBMFS_INVALID, batch.places = &negative);
    BATCH(HBMFS_INVALID, batch.lengths = &huge);
    BATCH(HBMFS_INVALID, batch.length = -1);
    BATCH(HBMFS_INVALID, (batch.count = 0, batch.dst_length = -1));
    BATCH(HBMFS_INVALID, batch.sequence_count = 1);
    BATCH(HBMFS_INVALID, (batch.sequence_count = 1, batch.sequence_lengths = &one, batch.sequence_documents = &one, batch.elements = 1));
    BATCH(HBMFS_INVALID, (batch.sequence_count = 1, batch.sequence_lengths = &huge, batch.sequence_documents = &one, batch.elements = 1));
    BATCH(HBMFS_INVALID, (batch.sequence_count = 1, batch.sequence_lengths = &negative, batch.sequence_documents = &one, batch.elements = -1));
    BATCH(HBMFS_INVALID, (batch.sequence_count = 1, batch.sequence_lengths = &one, batch.sequence_documents = &negative, batch.elements = 1, batch.element = 3));
    BATCH(HBMFS_INVALID, (batch.sequence_count = 1, batch.sequence_lengths = &one, batch.sequence_documents = &negative, batch.elements = 1, batch.dst = 0));
    BATCH(HBMFS_OUT_OF_RANGE, (negative = -2, batch.starts = &negative));
    BATCH(HBMFS_OUT_OF_RANGE, batch.starts = &size);
    BATCH(HBMFS_OUT_OF_RANGE, batch.starts = &huge);
    BATCH(HBMFS_OUT_OF_RANGE, batch.begins = &negative);
    BATCH(HBMFS_INVALID, batch.dst = 1);
    batch = right, batch.count = 0, batch.dst = 0;
    OK(hbmfs_batch_begin(&batch, &request, &why));
    OK(hbmfs_wait(request, -1, NULL, &why));
}

static void headers(void) {
    static const char file[] = "\x37\0\0\0\0\0\0\0{\"a\\\"\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}xy";
    static const char want[] = "{\"size\":65,\"metadata\":{},\"tensors\":[[\"a\\\"\",\"U8\",[2],63,2]]}";
    char table[sizeof want];
    int64_t length;
    int fd = memfd_create("x.safetensors", 0);
    if (fd < 0 || write(fd, file, sizeof file - 1) != sizeof file - 1) DIE("no file");
    OK(hbmfs_safetensors_header(fd, "x", NULL, 0, &length, &why));
    if (length != sizeof want - 1) DIE("%ld bytes of table, want %zu", length, sizeof want - 1);
    memset(table, '#', sizeof table);
    OK(hbmfs_safetensors_header(fd, "x", table, length - 1, &length, &why));
    if (table[0] != '#') DIE("it is written where there is no room");
    OK(hbmfs_safetensors_header(fd, "x", table, sizeof table, &length, &why));
    if (memcmp(table, want, length) || table[length] != '#') DIE("the table is %.*s", (int)length, table);
    WANT(HBMFS_INVALID, hbmfs_safetensors_header(fd, NULL, table, sizeof table, &length, &why));
    WANT(HBMFS_INVALID, hbmfs_safetensors_header(fd, "x", NULL, 1, &length, &why));
    WANT(HBMFS_IO, hbmfs_safetensors_header(-1, "x", table, sizeof table, &length, &why));
    if (ftruncate(fd, 64)) DIE("ftruncate");
    hbmfs_failure said;
    int32_t code = hbmfs_safetensors_header(fd, "x", table, sizeof table, &length, &said);
    if (code != HBMFS_FORMAT || !strstr(said.text, "x is damaged or no safetensors file: tensor \"a")) DIE("%d: %s", code, said.text);
    close(fd);
}

static void orders(void) {
    int64_t count, zero = 0, borders[] = {0, 2, 2, 7}, four = 4, starts[] = {1, 4}, each[2], there[4], documents[4];
    uint8_t goes_on[4], drawn[9];
    int64_t of_samples[4][8] = {{0}}, packs[] = {0, 3, 7, 14, 15};
    hbmfs_packed packed = {.struct_size = sizeof packed, .capacity = 5, .starts = of_samples[0], .lengths = of_samples[1], .documents = of_samples[2], .borders = of_samples[3]};
    OK(hbmfs_pack(packs, 5, NULL, 0, 4, 7, NULL, 0, &packed, &why));
    const int64_t want[4][5] = {{7, 0, 3, 14, -1}, {7, 3, 4, 1, 6}, {2, 0, 1, 3, -1}, {0, 1, 3, 5}};
    if (packed.samples != 3 || packed.sequences != 5 || packed.tokens != 15) DIE("%ld samples, %ld sequences", packed.samples, packed.sequences);
    for (int i = 0; i < 4; i++)
        if (memcmp(of_samples[i], want[i], 8 * (i < 3 ? 5 : 4))) DIE("array %d of the samples begins with %ld", i, of_samples[i][0]);
    packed.capacity = 4, of_samples[0][0] = 99;
    OK(hbmfs_pack(packs, 5, NULL, 0, 4, 7, NULL, 0, &packed, &why));
    if (packed.sequences != 5 || of_samples[0][0] != 99) DIE("%ld sequences", packed.sequences);
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 4, NULL, 0, 4, 7, NULL, 0, &packed, &why));
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 5, NULL, 0, -1, 7, NULL, 0, &packed, &why));
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 5, NULL, 0, 4, 0, NULL, 0, &packed, &why));
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 5, NULL, 1, 4, 7, NULL, 0, &packed, &why));
    const uint64_t two[] = {5, 6};
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 5, NULL, 0, 4, 7, NULL, 1, &packed, &why));
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 5, NULL, 0, 4, 7, two, -1, &packed, &why));
    OK(hbmfs_pack(packs, 5, NULL, 0, 4, 7, two, 1, &packed, &why));
    hbmfs_packed none = {.struct_size = sizeof none};
    OK(hbmfs_pack(packs, 5, NULL, 0, 4, 7, NULL, 0, &none, &why));
    if (none.sequences < 5) DIE("%ld sequences", none.sequences);
    OK(hbmfs_pack(packs, 1, NULL, 0, 0, 7, NULL, 0, &none, &why));
    packed.starts = NULL;
    WANT(HBMFS_INVALID, hbmfs_pack(packs, 5, NULL, 0, 4, 7, NULL, 0, &packed, &why));
    const int64_t *of = borders;
    int32_t other[] = {0, 1};
    OK(hbmfs_cut(&of, &four, 1, NULL, starts, 2, 3, each, NULL, NULL, NULL, 0, &count, &why));
    if (count != 3 || each[0] != 2 || each[1] != 1) DIE("%ld documents", count);
    OK(hbmfs_cut(&of, &four, 1, NULL, starts, 2, 3, each, there, documents, goes_on, 4, &count, &why));
    if (there[0] != 1 || there[1] != 2 || documents[1] != 2 || goes_on[0] || !goes_on[1] || goes_on[2]) DIE("other documents");
    WANT(HBMFS_INVALID, hbmfs_cut(&of, &four, 1, NULL, starts, 2, 4, each, there, documents, goes_on, 4, &count, &why));
    WANT(HBMFS_INVALID, hbmfs_cut(&of, &zero, 1, NULL, starts, 2, 3, each, there, documents, goes_on, 4, &count, &why));
    WANT(HBMFS_INVALID, hbmfs_cut(&of, &four, 1, other, starts, 2, 3, each, there, documents, goes_on, 4, &count, &why));
    const int64_t places[] = {0, 1, 2, 3, 4};
    const uint64_t keys[] = {5, 6};
    const uint8_t three[] = {0, 1, 0, 0, 1};
    int64_t first[5];
    int32_t from[5], seen = 0;
    hbmfs_epochs of_two[] = {{.count = 5, .apart = 1, .epochs = 1, .keys = keys}, {.count = 2, .apart = 9, .given = 1}};
    OK(hbmfs_starts(of_two, 1, 2, NULL, 0, places, 5, first, from, &why));
    for (int i = 0; i < 5; i++) seen |= 1 << first[i];
    if (seen != 31) DIE("no permutation");
    const int64_t third = first[2];
    OK(hbmfs_starts(of_two, 2, 2, three, 5, places + 1, 4, first, from, &why));
    if (first[0] != 9 || from[0] != 1 || first[2] != third || from[2] != 0 || first[3] != 0) DIE("other samples");
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 2, 2, three, 4, places, 5, first, from, &why));
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 0, 2, NULL, 0, places, 5, first, from, &why));
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 257, 2, NULL, 0, places, 5, first, from, &why));
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 1, -1, NULL, 0, places, 5, first, from, &why));
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 1, 2, NULL, -1, places, -1, first, from, &why));
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 1, 2, NULL, 0, NULL, 5, first, from, &why));
    of_two[0].epochs = -1;
    WANT(HBMFS_INVALID, hbmfs_starts(of_two, 1, 2, NULL, 0, places, 5, first, from, &why));
    hbmfs_source sources[] = {{.may = 1, .due = 2, .then_may = 3, .then_due = 4, .every = 2, .slope = {0, 1}}, {.may = 1, .due = 3, .then_may = 3, .then_due = 9}};
    OK(hbmfs_draw(sources, 2, 0, 100, drawn, 9, &count, &why));
    if (count != 2 || drawn[0] != 0 || drawn[1] != 1 || sources[0].may != 3) DIE("%ld were drawn", count);
    WANT(HBMFS_INVALID, hbmfs_draw(sources, 0, 0, 100, drawn, 9, &count, &why));
    WANT(HBMFS_INVALID, hbmfs_draw(sources, 257, 0, 100, drawn, 9, &count, &why));
}

int32_t batch_brought(const hbmfs_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    int32_t code = hbmfs_batch_begin(batch, request, why);
    if (code) return code;
    code = hbmfs_wait(*request, -1, NULL, why);
    *request = 0;
    return code;
}

void errors(const struct device *d, const char *path) {
    options(d);
    orders();
    headers();
    hbmfs_handle reader = open_reader(d), file, other;
    WANT(HBMFS_NOT_FOUND, hbmfs_file_open(reader, "/nowhere/at/all", &file, &why));
    WANT(HBMFS_INVALID, hbmfs_file_open(reader, "/tmp", &file, &why));
    OK(hbmfs_file_open(reader, path, &file, &why));
    const char *paths[] = {path, "/nowhere/at/all"};
    hbmfs_handle both[2];
    int32_t codes[2];
    WANT(HBMFS_NOT_FOUND, hbmfs_file_open_many(reader, paths, 2, both, codes, &why));
    if (codes[0] || codes[1] != HBMFS_NOT_FOUND || !both[0] || both[1]) DIE("codes %d and %d", codes[0], codes[1]);
    int64_t size;
    free(whole_file(path, &size));
    struct memory m = get_memory(reader, d, 4096);
    handles(reader, file, &m);
    ranges(file, &m, size);
    if (d->index != HBMFS_HOST) {
        char ordinary[16];
        hbmfs_handle request;
        WANT(HBMFS_INVALID, hbmfs_read_begin(file, (uint64_t)(uintptr_t)ordinary, 16, 0, 16, 0, &request, &why));
        struct memory none;
        WANT(HBMFS_OUT_OF_MEMORY, hbmfs_memory_alloc(reader, (int64_t)1 << 45, &none.handle, &none.at, &why));
    }
    hbmfs_file_info info = {.struct_size = sizeof info};
    OK(hbmfs_file_close(both[0], &why));
    WANT(HBMFS_CLOSED, hbmfs_file_close(both[0], &why));
    WANT(HBMFS_CLOSED, hbmfs_file_get_info(both[0], &info, &why));
    OK(hbmfs_reader_close(reader, &why)); // and the file with it
    WANT(HBMFS_CLOSED, hbmfs_reader_close(reader, &why));
    WANT(HBMFS_CLOSED, hbmfs_file_open(reader, path, &other, &why));
    WANT(HBMFS_CLOSED, hbmfs_file_get_info(file, &info, &why));
    free_memory(&m, d); // memory outlives its reader
    if (d->index != HBMFS_HOST) WANT(HBMFS_CLOSED, hbmfs_memory_free(m.handle, &why));
}

// Cancelling a read that hangs: it takes until the fake GPU goes on.
void cancel(const struct device *d, const char *path) {
    void *cuda = dlopen(d->libcuda, RTLD_NOW);
    uint64_t (*hold)(void) = (uint64_t (*)(void))dlsym(cuda, "fake_cuda_hold"), (*go_on)(void) = (uint64_t (*)(void))dlsym(cuda, "fake_cuda_go_on");
    uint64_t (*pending)(void) = (uint64_t (*)(void))dlsym(cuda, "fake_cuda_pending");
    if (!hold || !go_on || !pending) DIE("%s is not the fake", d->libcuda);
    hbmfs_handle reader = open_reader(d), file, request, second;
    OK(hbmfs_file_open(reader, path, &file, &why));
    struct memory m = get_memory(reader, d, 4096);
    hold();
    OK(hbmfs_read_begin(file, m.at, m.length, 0, 4096, 0, &request, &why));
    OK(hbmfs_read_begin(file, m.at, m.length, 0, 4096, 0, &second, &why));
    while (pending() < 8) usleep(1000); // of each: the mark, the wait for it, a copy, its end
    WANT(HBMFS_TIMEOUT, hbmfs_wait(request, 0, NULL, &why));
    WANT(HBMFS_TIMEOUT, hbmfs_wait(request, 1000000, NULL, &why));
    WANT(HBMFS_TIMEOUT, hbmfs_cancel(request, 0, &why));
    WANT(HBMFS_TIMEOUT, hbmfs_cancel(request, 1000000, &why));
    WANT(HBMFS_TIMEOUT, hbmfs_file_close(file, &why)); // after five seconds
    hbmfs_handle third;
    WANT(HBMFS_CLOSED, hbmfs_read_begin(file, m.at, m.length, 0, 1, 0, &third, &why));
    go_on();
    OK(hbmfs_cancel(request, -1, &why));
    WANT(HBMFS_CLOSED, hbmfs_cancel(request, -1, &why));
    WANT(HBMFS_CANCELLED, hbmfs_wait(second, -1, NULL, &why));
    OK(hbmfs_file_close(file, &why));
    free_memory(&m, d);
    OK(hbmfs_reader_close(reader, &why));
    dlclose(cuda);
}
