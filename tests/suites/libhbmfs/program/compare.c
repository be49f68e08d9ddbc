// The bytes that arrive are the file's, by every way of asking.
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

static void by_read(hbmfs_handle file, const struct device *d, struct memory *m, const char *want, int64_t size, uint64_t *random) {
    char *got = malloc(m->length);
    for (int i = 0; i < 4; i++) {
        int64_t offset = i ? (int64_t)(next_random(random) % (size + 1)) : 0;
        int64_t length = i ? (int64_t)(next_random(random) % (size - offset + 1)) : size;
        hbmfs_result r = {.struct_size = sizeof r};
        OK(hbmfs_read(file, m->at, m->length, offset, length, 0, &r, &why));
        int64_t moved = r.moved.direct + r.moved.mapped + r.moved.staged + r.moved.compat + r.moved.host;
        if (moved != length || !r.path[0] || !r.reason[0]) DIE("%ld bytes by '%s' ('%s'), want %ld", moved, r.path, r.reason, length);
        get_bytes(m, d, got, length);
        if (memcmp(got, want + offset, length)) DIE("read %ld at %ld: wrong bytes", length, offset);
    }
    free(got);
}

// Gathers rows of an odd place each, as they are and widened from element bytes.
static void by_gather(hbmfs_handle file, const struct device *d, struct memory *m, const char *want, int64_t size, int widen, uint64_t *random) {
    enum { ROWS = 37 };
    int64_t element = widen == HBMFS_U16_TO_I64 ? 2 : widen == HBMFS_U32_TO_I64 ? 4 : 1, times = widen ? 8 / element : 1;
    int64_t most = size / element < 200 ? size / element : 200, length = element * (int64_t)(next_random(random) % (most + 1)), offsets[ROWS];
    for (int i = 0; i < ROWS; i++) offsets[i] = next_random(random) % (size - length + 1);
    hbmfs_handle request;
    OK(hbmfs_gather_begin(file, m->at, m->length, offsets, ROWS, length, widen, HBMFS_NO_STREAM, &request, &why));
    for (int32_t code; (code = hbmfs_wait(request, 1000000, NULL, NULL)); )
        if (code != HBMFS_TIMEOUT) DIE("gather: %s", hbmfs_code_name(code));
    WANT(HBMFS_CLOSED, hbmfs_wait(request, -1, NULL, &why)); // its handle ended with it
    char *got = malloc(ROWS * length * times + 1);
    get_bytes(m, d, got, ROWS * length * times);
    for (int64_t i = 0; i < ROWS; i++) {
        const char *row = want + offsets[i];
        if (!widen && memcmp(got + i * length, row, length)) DIE("row %ld of %ld: wrong bytes", i, length);
        for (int64_t k = 0; widen && k < length / element; k++) {
            uint64_t number = 0, there;
            memcpy(&number, row + k * element, element);
            memcpy(&there, got + 8 * (i * (length / element) + k), 8);
            if (number != there) DIE("element %ld of row %ld is %lu, want %lu", k, i, there, number);
        }
    }
    free(got);
}

// A batch of spans of odd lengths of a file that is given three times, the last one first, with a byte between them, and of sequences
// of those bytes, two of which are empty.
static void by_batch(hbmfs_handle file, const struct device *d, struct memory *m, const char *want, int64_t size, uint64_t *random) {
    enum { SPANS = 37 };
    if (!size) return;
    hbmfs_handle files[] = {file, file, file}, request;
    int64_t starts[SPANS], lengths[SPANS], places[SPANS], begins[] = {0, 0, 1}, end = 0;
    int32_t sources[SPANS];
    for (int i = SPANS - 1; i >= 0; i--) {
        lengths[i] = i == 3 ? 0 : next_random(random) % (size < 900 ? size : 900);
        starts[i] = next_random(random) % (size - lengths[i]);
        places[i] = end;
        sources[i] = i % 3;
        end += lengths[i] + 1;
    }
    int64_t tokens = 0, documents[SPANS], sequences[SPANS];
    for (int i = 0; i < SPANS; i++) sequences[i] = i == 5 ? 0 : 1 + next_random(random) % 5, documents[i] = 7000000000 - i, tokens += sequences[i];
    int64_t at = (end + 7) / 8 * 8, begin = at + 16 * tokens;
    hbmfs_batch batch = {
        .struct_size = sizeof batch, .element = 1, .files = files, .begins = begins, .file_count = 3, .count = SPANS, .sources = sources, .starts = starts,
        .lengths = lengths, .places = places, .dst = m->at, .dst_length = end, .stream = HBMFS_NO_STREAM, .sequence_count = SPANS,
        .sequence_lengths = sequences, .sequence_documents = documents, .elements = tokens, .position_ids = m->at + at, .document_ids = m->at + at + 8 * tokens,
        .cu_seqlens = m->at + begin,
    };
    OK(hbmfs_batch_begin(&batch, &request, &why));
    OK(hbmfs_wait(request, -1, NULL, &why));
    WANT(HBMFS_CLOSED, hbmfs_wait(request, -1, NULL, &why));
    char *got = malloc(begin + 4 * (SPANS + 1));
    get_bytes(m, d, got, begin + 4 * (SPANS + 1));
    for (int i = 0; i < SPANS; i++)
        if (memcmp(got + places[i], want + starts[i] + begins[sources[i]], lengths[i])) DIE("span %d of %ld at %ld: wrong bytes", i, lengths[i], starts[i]);
    int64_t *positions = (int64_t *)(got + at), *numbers = positions + tokens, t = 0;
    for (int i = 0; i < SPANS; i++) {
        if (((int32_t *)(got + begin))[i] != t) DIE("sequence %d begins at %d, not %ld", i, ((int32_t *)(got + begin))[i], t);
        for (int64_t p = 0; p < sequences[i]; p++, t++)
            if (positions[t] != p || numbers[t] != documents[i]) DIE("token %ld is %ld of document %ld, not %ld of %ld", t, positions[t], numbers[t], p, documents[i]);
    }
    if (((int32_t *)(got + begin))[SPANS] != tokens) DIE("the sequences end at %d, not %ld", ((int32_t *)(got + begin))[SPANS], tokens);
    free(got);
    batch.elements++;
    WANT(HBMFS_INVALID, batch_brought(&batch, &request, &why));
    batch.elements--;
    files[2] = 1 << 30; // begun for the first, refused for the last
    WANT(HBMFS_INVALID, hbmfs_batch_begin(&batch, &request, &why));
    if (request) DIE("a handle of what was refused");
}

// Spans one behind the other, of which every third is padding, of elements of 1 to 8 bytes.
static void by_padding(hbmfs_handle file, const struct device *d, struct memory *m, const char *want, int64_t size, uint64_t *random) {
    enum { SPANS = 30 };
    for (int64_t element = 1; element <= 8 && size >= element; element *= 2) {
        int64_t starts[SPANS], lengths[SPANS], elements = 0;
        for (int i = 0; i < SPANS; i++) {
            int64_t most = size / element < 100 ? size / element : 100;
            lengths[i] = next_random(random) % (most + 1);
            starts[i] = i % 3 ? (int64_t)(next_random(random) % (size / element - lengths[i] + 1)) : -1;
            elements += lengths[i];
        }
        const char pad[] = "\x81\x02\x83\x04\x85\x06\x87\x08";
        hbmfs_handle request;
        hbmfs_batch batch = {
            .struct_size = sizeof batch, .element = element, .files = &file, .file_count = 1, .count = SPANS, .starts = starts, .lengths = lengths, .dst = m->at,
            .dst_length = elements * element, .stream = HBMFS_NO_STREAM, .sequence_count = SPANS, .sequence_lengths = lengths, .sequence_documents = starts,
            .elements = elements, .pad = 0x0887068504830281,
        };
        OK(hbmfs_batch_begin(&batch, &request, &why));
        OK(hbmfs_wait(request, -1, NULL, &why));
        char *got = malloc(elements * element + 1), *at = got;
        get_bytes(m, d, got, elements * element);
        for (int i = 0; i < SPANS; at += lengths[i++] * element)
            for (int64_t k = 0; k < lengths[i]; k++)
                if (memcmp(at + k * element, starts[i] < 0 ? pad : want + (starts[i] + k) * element, element)) DIE("element %ld of span %d from %ld, of %ld bytes", k, i, starts[i], element);
        free(got);
    }
}

static void prefetch(hbmfs_handle file, int64_t size) {
    enum { MOST = 10 };
    int64_t offsets[MOST], lengths[MOST], n = 0, step = size / (MOST - 1) + 1;
    for (int64_t at = 0; at < size; at += step, n++) offsets[n] = at, lengths[n] = size - at < step ? size - at : step;
    OK(hbmfs_prefetch(file, offsets, lengths, n, &why));
}

static void compare_file(hbmfs_handle reader, hbmfs_handle file, const struct device *d, const char *path, uint64_t *random) {
    int64_t size;
    char *want = whole_file(path, &size);
    hbmfs_file_info info = {.struct_size = sizeof info};
    OK(hbmfs_file_get_info(file, &info, &why));
    if (info.size != size) DIE("%s: %ld bytes, want %ld", path, info.size, size);
    if (strstr(path, "/.hbmfs/views/") && !geteuid() && !info.mounted) DIE("%s is read through the mount: %s", path, info.note);
    if (strstr(path, "/tokens.") && strstr(path, "/.hbmfs/") && (info.tokens < 1 || !info.element_size)) DIE("%s: %ld tokens of %u bytes", path, info.tokens, info.element_size);
    if (info.tokens >= 0 && info.tokens * info.element_size > size) DIE("%s: %ld tokens of %u bytes in %ld", path, info.tokens, info.element_size, size);
    struct memory m = get_memory(reader, d, size + 37 * 8 * 200 + 8);
    by_read(file, d, &m, want, size, random);
    for (int widen = HBMFS_KEEP; widen <= HBMFS_U32_TO_I64; widen++) by_gather(file, d, &m, want, size, widen, random);
    by_batch(file, d, &m, want, size, random);
    by_padding(file, d, &m, want, size, random);
    prefetch(file, size);
    free_memory(&m, d);
    free(want);
}

void compare(const struct device *d, char **files, int n) {
    enum { BATCH = 50 };
    hbmfs_handle reader = open_reader(d), opened[BATCH];
    int32_t codes[BATCH];
    uint64_t random = 1;
    for (int first = 0; first < n; first += BATCH) {
        int count = n - first < BATCH ? n - first : BATCH;
        OK(hbmfs_file_open_many(reader, (const char *const *)files + first, count, opened, codes, &why));
        for (int i = 0; i < count; i++) {
            compare_file(reader, opened[i], d, files[first + i], &random);
            OK(hbmfs_file_close(opened[i], &why));
        }
    }
    hbmfs_reader_stats s = {.struct_size = sizeof s};
    OK(hbmfs_reader_get_stats(reader, &s, &why));
    if (s.files || s.requests || !s.reads || !s.path[0]) DIE("%d files, %d requests are open, %ld reads, last by '%s'", s.files, s.requests, s.reads, s.path);
    OK(hbmfs_reader_close(reader, &why));
}

// Many threads on one file, which is closed under them.
struct shared { hbmfs_handle reader, file; const struct device *d; const char *want; int64_t size; atomic_int arrived; };

static void *gather_until_closed(void *arg) {
    struct shared *s = arg;
    uint64_t random = (uint64_t)(uintptr_t)&random;
    struct memory m = get_memory(s->reader, s->d, 1000);
    char got[1000];
    for (;;) {
        int64_t offset = next_random(&random) % (s->size - 1000);
        hbmfs_handle request;
        int32_t code = hbmfs_gather_begin(s->file, m.at, m.length, &offset, 1, 1000, HBMFS_KEEP, 0, &request, NULL);
        if (!code) code = hbmfs_wait(request, -1, NULL, NULL);
        if (code == HBMFS_CLOSED || code == HBMFS_CANCELLED) break;
        if (code) DIE("gather: %s", hbmfs_code_name(code));
        get_bytes(&m, s->d, got, 1000);
        if (memcmp(got, s->want + offset, 1000)) DIE("wrong bytes at %ld", offset);
        atomic_fetch_add(&s->arrived, 1);
    }
    free_memory(&m, s->d);
    return NULL;
}

void threads(const struct device *d, const char *file) {
    enum { THREADS = 6 };
    struct shared s = {.reader = open_reader(d), .d = d};
    s.want = whole_file(file, &s.size);
    OK(hbmfs_file_open(s.reader, file, &s.file, &why));
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&all[i], NULL, gather_until_closed, &s)) DIE("no thread");
    while (atomic_load(&s.arrived) < 50) usleep(1000);
    OK(hbmfs_file_close(s.file, &why));
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    OK(hbmfs_reader_close(s.reader, &why));
    free((char *)s.want);
}
