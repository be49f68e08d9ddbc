// A libcuda for tests: host memory plays HBM, one thread per stream runs what is queued, late on purpose, so that
// who forgets to wait reads wrong bytes. Everything is checked: contexts, ranges, that sources stay registered until
// they were copied. Set by the environment:
//   FAKE_CUDA_DEVICES   GPUs (1)
//   FAKE_CUDA_MEMORY    bytes of HBM (1 GiB)
//   FAKE_CUDA_PINNABLE  bytes that can be registered (no limit)
//   FAKE_CUDA_NO_BATCH  copies begin one by one
//   FAKE_CUDA_DELAY_US  how late a stream runs each of its steps (50)
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef int CUresult;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801 };

struct range { uintptr_t at; size_t n; int flags; struct range *next; };
struct step { enum { COPY, SIGNAL, GATHER, AWAIT, WIDEN, SEQUENCES } kind; uintptr_t to, from, also[6]; size_t n; struct event *event; uint64_t serial; struct step *next; };
struct stream { struct step *head, **tail; int ending; uint64_t queued, done; pthread_t thread; };
struct event { uint64_t recorded, reached; };
struct piece { uint64_t src, dst, bytes; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct range *hbm, *pinned;
static size_t hbm_used, pinned_now, pinned_peak;
static uint64_t violations, launches, copies, batches, registrations;
static uint64_t events, pending;
static int initialized, retained, held;
static volatile int no_record; // cuEventRecord fails
static volatile int lost; // a kernel went wrong: every call fails from then on
static __thread void *current;
static char the_context;

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static int inside(struct range *list, uintptr_t at, size_t n) {
    for (; list; list = list->next)
        if (at >= list->at && n <= list->n && at - list->at <= list->n - n) return 1;
    return 0;
}

static struct range *detach(struct range **list, uintptr_t at) {
    for (; *list; list = &(*list)->next)
        if ((*list)->at == at) { struct range *r = *list; *list = r->next; return r; }
    return NULL;
}

// The caller holds the lock.
static void violate(const char *what) { violations++; fprintf(stderr, "fake libcuda: %s\n", what); }

static void copy(uintptr_t to, uintptr_t from, size_t n) {
    int in = inside(hbm, to, n) && inside(pinned, from, n), out = inside(hbm, from, n) && inside(pinned, to, n);
    if (in || out || (inside(hbm, to, n) && inside(hbm, from, n))) memcpy((void *)to, (void *)from, n);
    else violate("a copy whose memory is not registered, or not all of it");
}

// As widen.cu does. Elements are little-endian.
static void widen(uintptr_t table, size_t n, const uintptr_t *how) {
    uintptr_t to = how[0], beside = how[1], from = how[2], size = how[3], with_sign = how[4];
    const uint64_t not_in_second = 1ull << 63, not_in_first = 1ull << 62;
    struct piece *p = (struct piece *)table; // dst is an element of the outputs
    if (!inside(pinned, table, n * sizeof *p)) { violate("a table that the GPU cannot see"); return; }
    if (to % size || beside % size || from > size || size > 8) { violate("a widening of elements that cannot be"); return; }
    for (; n; n--, p++) {
        uint64_t bytes = p->bytes & (not_in_first - 1), many = bytes / from;
        if (bytes % from || (!inside(pinned, p->src, bytes) && !inside(hbm, p->src, bytes))) { violate("a widening of what is not registered, or of parts of elements"); return; }
        uint64_t last = p->bytes & not_in_first ? many - 1 : many, first = p->bytes & not_in_second ? 1 : 0;
        if (many && !inside(hbm, to + size * p->dst, size * last)) { violate("widened elements that go to what is not HBM"); return; }
        if (many && beside && !inside(hbm, beside + size * (p->dst + first - 1), size * (many - first))) { violate("second elements that go to what is not HBM"); return; }
        for (uint64_t k = 0; k < many; k++) {
            uint64_t value = 0, sign = with_sign ? 1ull << (8 * from - 1) : 0;
            memcpy(&value, (char *)p->src + k * from, from);
            value = (value ^ sign) - sign;
            if (k < last) memcpy((void *)(to + size * (p->dst + k)), &value, size);
            if (beside && k >= first) memcpy((void *)(beside + size * (p->dst + k - 1)), &value, size);
        }
    }
}

static void sequences(uintptr_t borders, uintptr_t documents, size_t n, const uintptr_t *to) {
    if (!inside(pinned, borders, 4 * (n + 1)) || !inside(pinned, documents, 8 * n)) { violate("a table that the GPU cannot see"); return; }
    uintptr_t begins = to[0], positions = to[1], numbers = to[2], target = to[3], element = to[4], pad = to[5];
    if (begins && !inside(hbm, begins, 4 * (n + 1))) { violate("borders that go to what is not HBM"); return; }
    if (begins) memcpy((void *)begins, (void *)borders, 4 * (n + 1));
    for (size_t i = 0; i < n; i++) {
        uint32_t first = ((uint32_t *)borders)[i], end = ((uint32_t *)borders)[i + 1];
        int64_t document = ((int64_t *)documents)[i];
        size_t many = end - first;
        if (first < end && begins && (!inside(hbm, positions + 8 * (size_t)first, 8 * many) || !inside(hbm, numbers + 8 * (size_t)first, 8 * many))) { violate("tokens that are not in HBM"); return; }
        for (uint32_t t = first; begins && t < end; t++) {
            ((int64_t *)positions)[t] = t - first;
            ((int64_t *)numbers)[t] = document;
        }
        if (!target || document >= 0 || first == end) continue;
        if ((element != 1 && element != 2 && element != 4 && element != 8) || target % element || !inside(hbm, target + element * first, element * many)) { violate("padding that is not in HBM"); return; }
        for (uint32_t t = first; t < end; t++) memcpy((void *)(target + element * t), &pad, element); // little-endian
    }
}

static void run(struct step *s) {
    switch (s->kind) {
    case AWAIT: while (s->event->reached < s->serial) pthread_cond_wait(&moved, &lock); break;
    case WIDEN: launches++; widen(s->from, s->n, s->also); break;
    case SEQUENCES: launches++; sequences(s->from, s->to, s->n, s->also); break;
    case COPY: copies++; copy(s->to, s->from, s->n); break;
    case SIGNAL: if (s->event->reached < s->serial) s->event->reached = s->serial; break;
    case GATHER: {
        struct piece *p = (struct piece *)s->from;
        launches++;
        if (!inside(pinned, s->from, s->n * sizeof *p) && !inside(hbm, s->from, s->n * sizeof *p)) { violate("a table that the GPU cannot see"); break; }
        for (size_t i = 0; i < s->n; i++) // a kernel also writes to pinned memory
            if (inside(pinned, p[i].src, p[i].bytes) && inside(pinned, p[i].dst, p[i].bytes)) memcpy((void *)p[i].dst, (void *)p[i].src, p[i].bytes);
            else copy(p[i].dst, p[i].src, p[i].bytes);
    }
    }
}

static void *serve(void *arg) {
    struct stream *s = arg;
    useconds_t delay = number("FAKE_CUDA_DELAY_US", 50);
    prctl(PR_SET_TIMERSLACK, 1UL); // the kernel would add another 50 microseconds to each sleep
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->head && !s->ending) pthread_cond_wait(&moved, &lock);
        if (!s->head) break;
        pthread_mutex_unlock(&lock);
        if (delay) usleep(delay);
        pthread_mutex_lock(&lock);
        while (held) pthread_cond_wait(&moved, &lock);
        struct step *step = s->head;
        run(step);
        s->head = step->next;
        if (!s->head) s->tail = &s->head;
        s->done++;
        pending--;
        free(step);
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *legacy; // the default stream
static CUresult new_stream(struct stream **out); // a call of an exported name might end in another copy of this library

static CUresult enqueue(struct stream *s, struct step step) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (lost) return ILLEGAL_ADDRESS;
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&once);
    if (!legacy) new_stream(&legacy);
    pthread_mutex_unlock(&once);
    if (!s) s = legacy;
    struct step *copy = malloc(sizeof *copy);
    *copy = step;
    copy->next = NULL;
    pthread_mutex_lock(&lock);
    if (step.kind == SIGNAL) copy->serial = ++step.event->recorded;
    if (step.kind == AWAIT) copy->serial = step.event->recorded;
    *s->tail = copy;
    s->tail = &copy->next;
    s->queued++;
    pending++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuInit(unsigned flags) { initialized = 1; return flags ? INVALID_VALUE : number("FAKE_CUDA_DEVICES", 1) ? OK : NO_DEVICE; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return OK; }
CUresult cuDeviceGetCount(int *n) { *n = (int)number("FAKE_CUDA_DEVICES", 1); return initialized ? OK : 3; }
CUresult cuDeviceGet(int *dev, int i) { *dev = i; return i >= 0 && i < (int)number("FAKE_CUDA_DEVICES", 1) ? OK : INVALID_DEVICE; }
CUresult cuDeviceGetName(char *s, int n, int dev) { snprintf(s, n, "Fake GPU %d", dev); return OK; }
CUresult cuDeviceGetPCIBusId(char *s, int n, int dev) { snprintf(s, n, "FFFF:%02X:00.0", dev); return OK; }
CUresult cuDeviceGetUuid_v2(unsigned char *u, int dev) { for (int i = 0; i < 16; i++) u[i] = i + 1; u[15] += dev; return OK; }
CUresult cuDevicePrimaryCtxRetain(void **ctx, int dev) { (void)dev; retained++; *ctx = &the_context; return OK; }
CUresult cuDevicePrimaryCtxRelease_v2(int dev) { (void)dev; return retained-- > 0 ? OK : INVALID_CONTEXT; }
CUresult cuCtxSetCurrent(void *ctx) { current = ctx; return ctx == &the_context ? OK : INVALID_CONTEXT; }
static __thread void *stack[8];
static __thread int depth;
CUresult cuCtxPushCurrent_v2(void *ctx) { if (ctx != &the_context || depth == 8) return INVALID_CONTEXT; stack[depth++] = current; current = ctx; return OK; }
CUresult cuCtxPopCurrent_v2(void **ctx) { if (!depth) return INVALID_CONTEXT; *ctx = current; current = stack[--depth]; return OK; }
CUresult cuMemGetInfo_v2(size_t *free_, size_t *total) {
    if (!current) return INVALID_CONTEXT;
    *total = number("FAKE_CUDA_MEMORY", 1 << 30);
    *free_ = *total - hbm_used;
    return OK;
}

CUresult cuMemAlloc_v2(uintptr_t *p, size_t n) {
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult result = OUT_OF_MEMORY;
    void *memory;
    if (hbm_used + n <= number("FAKE_CUDA_MEMORY", 1 << 30) && !posix_memalign(&memory, 4096, n)) {
        struct range *r = malloc(sizeof *r);
        *r = (struct range){(uintptr_t)memory, n, 0, hbm};
        hbm = r;
        hbm_used += n;
        memset(memory, 0xDB, n);
        *p = r->at;
        result = OK;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemFree_v2(uintptr_t p) {
    if (lost) return ILLEGAL_ADDRESS;
    pthread_mutex_lock(&lock);
    struct range *r = detach(&hbm, p);
    if (r) { hbm_used -= r->n; free((void *)r->at); free(r); }
    pthread_mutex_unlock(&lock);
    return r ? OK : INVALID_VALUE;
}

CUresult cuMemHostRegister_v2(uintptr_t p, size_t n, unsigned flags) {
    if (lost) return ILLEGAL_ADDRESS;
    if (!current) return INVALID_CONTEXT;
    if (p % 4096 || n % 4096 || !n) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUresult result = OK;
    if (inside(pinned, p, 1)) result = ALREADY_REGISTERED;
    else if (pinned_now + n > number("FAKE_CUDA_PINNABLE", (size_t)1 << 40)) result = OUT_OF_MEMORY;
    else {
        struct range *r = malloc(sizeof *r);
        *r = (struct range){p, n, (int)flags, pinned};
        pinned = r;
        pinned_now += n;
        registrations++;
        if (pinned_now > pinned_peak) pinned_peak = pinned_now;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemHostUnregister(uintptr_t p) {
    if (lost) return ILLEGAL_ADDRESS;
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct range *r = detach(&pinned, p);
    if (r) { pinned_now -= r->n; free(r); }
    pthread_mutex_unlock(&lock);
    return r ? OK : NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(uintptr_t *d, uintptr_t p, unsigned flags) {
    *d = p;
    pthread_mutex_lock(&lock);
    int known = inside(pinned, p, 1);
    pthread_mutex_unlock(&lock);
    return flags ? INVALID_VALUE : known ? OK : NOT_REGISTERED;
}

static CUresult new_stream(struct stream **out) {
    if (!current) return INVALID_CONTEXT;
    struct stream *s = calloc(1, sizeof *s);
    s->tail = &s->head;
    *out = s;
    return pthread_create(&s->thread, NULL, serve, s) ? OUT_OF_MEMORY : OK;
}
CUresult cuStreamCreate(struct stream **out, unsigned flags) { (void)flags; return new_stream(out); }

CUresult cuStreamDestroy_v2(struct stream *s) {
    pthread_mutex_lock(&lock);
    s->ending = 1;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    free(s);
    return OK;
}

CUresult cuStreamSynchronize(struct stream *s) {
    if (lost) return ILLEGAL_ADDRESS;
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    for (uint64_t until = s->queued; s->done < until;) pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuEventCreate(struct event **e, unsigned flags) { (void)flags; *e = calloc(1, sizeof **e); __sync_fetch_and_add(&events, 1); return current ? OK : INVALID_CONTEXT; }
CUresult cuEventDestroy_v2(struct event *e) { (void)e; __sync_fetch_and_sub(&events, 1); return OK; } // a stream may still wait for it
CUresult cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) { return flags ? INVALID_VALUE : enqueue(s, (struct step){.kind = AWAIT, .event = e}); }
CUresult cuEventRecord(struct event *e, struct stream *s) { return no_record ? OUT_OF_MEMORY : enqueue(s, (struct step){.kind = SIGNAL, .event = e}); }
CUresult cuEventQuery(struct event *e) {
    if (lost) return ILLEGAL_ADDRESS;
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int there = e->reached >= e->recorded;
    pthread_mutex_unlock(&lock);
    return there ? OK : NOT_READY;
}

CUresult cuMemcpyHtoDAsync_v2(uintptr_t to, uintptr_t from, size_t n, struct stream *s) { return enqueue(s, (struct step){.kind = COPY, .to = to, .from = from, .n = n}); }
CUresult cuMemcpyDtoHAsync_v2(uintptr_t to, uintptr_t from, size_t n, struct stream *s) { return enqueue(s, (struct step){.kind = COPY, .to = to, .from = from, .n = n}); }

struct attributes { unsigned order; int hints[4]; unsigned flags; };

static CUresult batch(const uintptr_t *to, const uintptr_t *from, const size_t *n, size_t count, const struct attributes *a, const size_t *first, size_t kinds, struct stream *s) {
    if (number("FAKE_CUDA_NO_BATCH", 0)) return NOT_SUPPORTED;
    if (!count || kinds != 1 || *first || a->order != 1 || a->flags || !s) return INVALID_VALUE;
    CUresult result = OK;
    for (size_t i = 0; i < count && result == OK; i++) result = enqueue(s, (struct step){.kind = COPY, .to = to[i], .from = from[i], .n = n[i]});
    if (result == OK) __sync_fetch_and_add(&batches, 1);
    return result;
}
#ifndef WITHOUT_KERNELS
CUresult cuMemcpyBatchAsync_v2(uintptr_t *to, uintptr_t *from, size_t *n, size_t count, struct attributes *a, size_t *first, size_t kinds, struct stream *s) {
    return batch(to, from, n, count, a, first, kinds, s);
}
#else
CUresult cuMemcpyBatchAsync(uintptr_t *to, uintptr_t *from, size_t *n, size_t count, struct attributes *a, size_t *first, size_t kinds, size_t *failed, struct stream *s) {
    *failed = 0;
    return batch(to, from, n, count, a, first, kinds, s);
}
#endif

CUresult cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t n) {
    pthread_mutex_lock(&lock);
    int fits = inside(hbm, to, n);
    if (fits) memcpy((void *)to, from, n);
    pthread_mutex_unlock(&lock);
    return !current ? INVALID_CONTEXT : fits ? OK : INVALID_VALUE;
}

CUresult cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t n, struct stream *s) { return enqueue(s, (struct step){.kind = COPY, .to = to, .from = from, .n = n}); }
CUresult cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t n) {
    pthread_mutex_lock(&lock);
    int fits = inside(hbm, from, n);
    if (fits) memcpy(to, (void *)from, n);
    pthread_mutex_unlock(&lock);
    return !current ? INVALID_CONTEXT : fits ? OK : INVALID_VALUE;
}

CUresult cuPointerGetAttributes(unsigned n, const int *attributes, void **values, uintptr_t p) {
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int device = inside(hbm, p, 1), host = inside(pinned, p, 1);
    uintptr_t at = 0, size = 0;
    for (struct range *r = device ? hbm : pinned; r; r = r->next) if (p - r->at < r->n) { at = r->at; size = r->n; }
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < n; i++) switch (attributes[i]) {
    case 2: *(unsigned *)values[i] = device ? 2 : host ? 1 : 0; break; // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUDA knows no other memory
    case 3: *(uintptr_t *)values[i] = device || host ? p : 0; break;   // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    case 9: *(int *)values[i] = device || host ? 0 : -2; break;        // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    case 11: *(uintptr_t *)values[i] = at; break;                      // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
    case 12: *(size_t *)values[i] = size; break;                       // CU_POINTER_ATTRIBUTE_RANGE_SIZE
    default: return INVALID_VALUE;
    }
    return OK;
}

CUresult cuGetErrorName(CUresult code, const char **name) {
    *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
    return OK;
}

#ifndef WITHOUT_KERNELS
static struct { const char *name; char module, function; } kernels[] = {{"hbmfs_gather", 0, 0}, {"hbmfs_widen", 0, 0}, {"hbmfs_sequences", 0, 0}};
enum { GATHER_KERNEL, WIDEN_KERNEL, SEQUENCES_KERNEL, KERNELS };
CUresult cuModuleLoadData(void **m, const char *image) {
    for (int i = 0; i < KERNELS; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, ".entry %s(", kernels[i].name);
        if (strstr(image, entry)) { *m = &kernels[i].module; return OK; }
    }
    return INVALID_VALUE;
}
CUresult cuModuleUnload(void *m) {
    for (int i = 0; i < KERNELS; i++) if (m == &kernels[i].module) return OK;
    return INVALID_VALUE;
}
CUresult cuModuleGetFunction(void **f, void *m, const char *name) {
    for (int i = 0; i < KERNELS; i++) if (m == &kernels[i].module && !strcmp(name, kernels[i].name)) { *f = &kernels[i].function; return OK; }
    return NOT_FOUND;
}
CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **parameters, void **extra) {
    if (!gx || gy != 1 || gz != 1 || bx % 32 || by != 1 || bz != 1 || shared || extra) return INVALID_VALUE;
    if (f == &kernels[SEQUENCES_KERNEL].function)
        return enqueue(s, (struct step){.kind = SEQUENCES, .from = *(uint64_t *)parameters[0], .to = *(uint64_t *)parameters[1], .n = *(uint32_t *)parameters[2],
            .also = {*(uint64_t *)parameters[3], *(uint64_t *)parameters[4], *(uint64_t *)parameters[5], *(uint64_t *)parameters[6], *(uint32_t *)parameters[7], *(uint64_t *)parameters[8]}});
    if (f == &kernels[WIDEN_KERNEL].function)
        return enqueue(s, (struct step){.kind = WIDEN, .from = *(uint64_t *)parameters[0], .n = *(uint32_t *)parameters[1],
            .also = {*(uint64_t *)parameters[2], *(uint64_t *)parameters[3], *(uint32_t *)parameters[4], *(uint32_t *)parameters[5], *(uint32_t *)parameters[6]}});
    if (f != &kernels[GATHER_KERNEL].function) return INVALID_VALUE;
    return enqueue(s, (struct step){.kind = GATHER, .from = *(uint64_t *)parameters[0], .n = *(uint32_t *)parameters[1]});
}
#endif

// What tests ask.
uint64_t fake_cuda_violations(void) { return violations; }
uint64_t fake_cuda_launches(void) { return launches; }
uint64_t fake_cuda_batches(void) { return batches; } // calls that began several copies
uint64_t fake_cuda_registrations(void) { return registrations; }
uint64_t fake_cuda_pinned(void) { return pinned_now; }
uint64_t fake_cuda_pinned_peak(void) { return pinned_peak; }
uint64_t fake_cuda_hbm(void) { return hbm_used; }
uint64_t fake_cuda_events(void) { return events; }
uint64_t fake_cuda_pending(void) { pthread_mutex_lock(&lock); uint64_t n = pending; pthread_mutex_unlock(&lock); return n; } // steps that are queued
uint64_t fake_cuda_no_record(void) { no_record = 1; return 0; }
uint64_t fake_cuda_lose(void) { lost = 1; return 0; }
uint64_t fake_cuda_hold(void) { pthread_mutex_lock(&lock); held = 1; pthread_mutex_unlock(&lock); return 0; } // all streams stop
uint64_t fake_cuda_go_on(void) { pthread_mutex_lock(&lock); held = 0; pthread_cond_broadcast(&moved); pthread_mutex_unlock(&lock); return 0; }
uint64_t fake_cuda_retained(void) { return (uint64_t)retained; }
