// A libcufile for tests: it reads and writes with pread and pwrite, from and to the fake GPU's memory. Set by the environment:
//   FAKE_CUFILE_VERSION   what cuFileGetVersion says (1150); from 1190 on the statistics have the newer layout
//   FAKE_CUFILE_OPEN      an error of cuFileDriverOpen, e.g. 5002
//   FAKE_CUFILE_REGISTER  an error of cuFileHandleRegister, e.g. 5030
//   FAKE_CUFILE_READ      errno:N (-1, errno N), code:N (-N), short (at most 1000 bytes a call), hang, crash, wrong,
//                         wait (until fake_cufile_go_on)
//   FAKE_CUFILE_WRITE     the same of writes
//   FAKE_CUFILE_GIVE_BACK wait: cuFileHandleDeregister and cuFileDriverClose do (until fake_cufile_go_on)
//   FAKE_CUFILE_MOVED     how reads are counted: nvfs, p2p, posix, unaligned, nothing
// OLD leaves out what the first releases did not have.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct { int32_t err, cu_err; } status;
struct descriptor { int32_t type; union { int fd; void *handle; } u; const void *fs_ops; };
_Static_assert(sizeof(struct descriptor) == 24, "CUfileDescr_t of cufile.h 1.15.1");

static int opened, compat = 1;
static uint64_t opens, handles, reads, writes, reading, violations;
static uint64_t giving_back;
static volatile int gone_on;

static const char *setting(const char *name) { const char *s = getenv(name); return s ? s : ""; }

status cuFileDriverOpen(void) {
    int error = atoi(setting("FAKE_CUFILE_OPEN"));
    opens++;
    opened = !error;
    return (status){error, 0};
}
static void give_back(void) {
    if (strcmp(setting("FAKE_CUFILE_GIVE_BACK"), "wait")) return;
    __sync_fetch_and_add(&giving_back, 1);
    while (!gone_on) usleep(1000);
    __sync_fetch_and_sub(&giving_back, 1);
}
status cuFileDriverClose_v2(void) { give_back(); int was = opened; opened = 0; return (status){was ? 0 : 5001, 0}; }

status cuFileHandleRegister(void **h, struct descriptor *d) {
    int error = atoi(setting("FAKE_CUFILE_REGISTER"));
    if (!opened) return (status){5001, 0};
    if (error) return (status){error, 0};
    if (d->type != 1 || d->fs_ops) return (status){5022, 0};
    *h = (void *)(intptr_t)(d->u.fd + 1);
    handles++;
    return (status){0, 0};
}
void cuFileHandleDeregister(void *h) { give_back(); if (h) handles--; if (reading) violations++; }

ssize_t cuFileRead(void *h, char *base, size_t n, off_t offset, off_t skip) {
    const char *how = setting("FAKE_CUFILE_READ");
    if (!strncmp(how, "errno:", 6)) { errno = atoi(how + 6); return -1; }
    if (!strncmp(how, "code:", 5)) return -atoi(how + 5);
    if (!strcmp(how, "hang")) for (;;) pause();
    if (!strcmp(how, "crash")) abort();
    if (!strcmp(how, "wait")) {
        __sync_fetch_and_add(&reading, 1);
        while (!gone_on) usleep(1000);
        __sync_fetch_and_sub(&reading, 1);
    }
    if (!strcmp(how, "short") && n > 1000) n = 1000;
    reads++;
    // The real one reopens the file; O_DIRECT of the descriptor would make this pread refuse what is not aligned.
    char *bounce = NULL;
    size_t room = (n + 8191) / 4096 * 4096;
    off_t first = offset / 4096 * 4096;
    if (posix_memalign((void **)&bounce, 4096, room)) { errno = ENOMEM; return -1; }
    ssize_t got = pread((int)(intptr_t)h - 1, bounce, room, first);
    ssize_t have = got - (offset - first);
    if (got >= 0) {
        have = have < 0 ? 0 : have > (ssize_t)n ? (ssize_t)n : have;
        memcpy(base + skip, bounce + (offset - first), have);
        if (!strcmp(how, "wrong") && have) base[skip] ^= 1;
    }
    free(bounce);
    return got < 0 ? -1 : have;
}

ssize_t cuFileWrite(void *h, char *base, size_t n, off_t offset, off_t skip) {
    const char *how = setting("FAKE_CUFILE_WRITE");
    if (!strncmp(how, "errno:", 6)) { errno = atoi(how + 6); return -1; }
    if (!strncmp(how, "code:", 5)) return -atoi(how + 5);
    if (!strcmp(how, "hang")) for (;;) pause();
    if (!strcmp(how, "crash")) abort();
    if (!strcmp(how, "wait")) {
        __sync_fetch_and_add(&reading, 1);
        while (!gone_on) usleep(1000);
        __sync_fetch_and_sub(&reading, 1);
    }
    if (!strcmp(how, "short") && n > 8192) n = 8192;
    __sync_fetch_and_add(&writes, 1);
    if (n % 4096 || offset % 4096 || (uintptr_t)(base + skip) % 4096) __sync_fetch_and_add(&violations, 1);
    char *bounce = NULL; // HBM of the fake may lie anywhere
    if (posix_memalign((void **)&bounce, 4096, n)) { errno = ENOMEM; return -1; }
    memcpy(bounce, base + skip, n);
    if (!strcmp(how, "wrong")) bounce[0] ^= 1;
    ssize_t got = pwrite((int)(intptr_t)h - 1, bounce, n, offset);
    int error = errno;
    free(bounce);
    errno = error;
    return got;
}

uint64_t fake_cufile_handles(void) { return handles; }
uint64_t fake_cufile_reading(void) { return __sync_fetch_and_add(&reading, 0); }
uint64_t fake_cufile_giving_back(void) { return __sync_fetch_and_add(&giving_back, 0); }
uint64_t fake_cufile_violations(void) { return violations; }
uint64_t fake_cufile_go_on(void) { gone_on = 1; return 0; }
uint64_t fake_cufile_writes(void) { return writes; }
uint64_t fake_cufile_opens(void) { return opens; }
uint64_t fake_cufile_opened(void) { return (uint64_t)opened; }
uint64_t fake_cufile_compat(void) { return (uint64_t)compat; }

#ifndef OLD
static int version(void) { const char *s = setting("FAKE_CUFILE_VERSION"); return *s ? atoi(s) : 1150; }
status cuFileGetVersion(int *v) { *v = version(); return (status){0, 0}; }
status cuFileSetParameterBool(int which, _Bool value) { if (opened) return (status){5026, 0}; if (which == 1) compat = value; return (status){0, 0}; }
status cuFileSetParameterSizeT(int which, size_t value) { (void)which; (void)value; return (status){opened ? 5026 : 0, 0}; }
status cuFileSetParameterString(int which, const char *value) { (void)which; (void)value; return (status){opened ? 5026 : 0, 0}; }
status cuFileSetStatsLevel(int level) { return (status){level == 3 ? 0 : 5022, 0}; }
status cuFileStatsReset(void) { reads = writes = 0; return (status){0, 0}; }
status cuFileStatsStart(void) { return (status){0, 0}; }
status cuFileStatsStop(void) { return (status){0, 0}; }
status cuFileGetStatsL3(unsigned char *s) {
    size_t shift = version() >= 1190 ? 112 : 0;
    const char *moved = setting("FAKE_CUFILE_MOVED");
    memset(s, 0, 5000 + shift);
    uint32_t gpus = 2;
    memcpy(s + 1024 + shift, &gpus, 4);
    unsigned char *gpu = s + 1032 + shift + 248; // the second entry: ours is not always the first
    for (int i = 0; i < 16; i++) gpu[i] = i + 1;
    int at = !strcmp(moved, "p2p") ? 56 : !strcmp(moved, "nvfs") ? 64 : !strcmp(moved, "posix") ? 72 : !strcmp(moved, "unaligned") ? 80 : 0;
    if (at) memcpy(gpu + at, &reads, 8);
    if (at) memcpy(gpu + at + 104, &writes, 8);
    return (status){0, 0};
}
#endif
