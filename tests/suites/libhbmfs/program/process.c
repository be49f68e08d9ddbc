// The library in its process: forks, signals, and what ten thousand rounds leave behind.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

void forks(const struct device *d, const char *path) {
    hbmfs_handle reader = open_reader(d), file, request;
    OK(hbmfs_file_open(reader, path, &file, &why));
    struct memory m = get_memory(reader, d, 4096);
    OK(hbmfs_read(file, m.at, m.length, 0, 100, 0, NULL, &why));
    pid_t child = fork();
    if (!child) {
        hbmfs_reader_options o = {.struct_size = sizeof o, .device = HBMFS_HOST};
        hbmfs_reader_stats stats = {.struct_size = sizeof stats};
        hbmfs_handle other;
        WANT(HBMFS_FORKED, hbmfs_reader_open(&o, &other, &why));
        WANT(HBMFS_FORKED, hbmfs_read(file, m.at, m.length, 0, 100, 0, NULL, &why));
        WANT(HBMFS_FORKED, hbmfs_read_begin(file, m.at, m.length, 0, 100, 0, &request, &why));
        WANT(HBMFS_FORKED, hbmfs_reader_get_stats(reader, &stats, &why));
        WANT(HBMFS_FORKED, hbmfs_file_close(file, &why));
        WANT(HBMFS_FORKED, hbmfs_reader_close(reader, &why));
        if (!fork()) { // a child of the child as well
            WANT(HBMFS_FORKED, hbmfs_reader_close(reader, &why));
            _exit(0);
        }
        int status;
        wait(&status);
        _exit(status ? 1 : 0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) DIE("the child ended with status %#x", status);
    OK(hbmfs_read(file, m.at, m.length, 0, 100, 0, NULL, &why)); // the parent goes on
    free_memory(&m, d);
    OK(hbmfs_reader_close(reader, &why));
}

static volatile sig_atomic_t seen;
static void see(int number) { seen = number; }

// A program's own handlers stay, and signals that nobody handles stay as they are.
void signals(const struct device *d, const char *path) {
    int mine[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM}, others[] = {SIGHUP, SIGQUIT, SIGUSR2, SIGWINCH};
    struct sigaction now, before[sizeof others / sizeof *others]; // what nohup and the like left ignored
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) sigaction(others[i], NULL, &before[i]);
    for (unsigned i = 0; i < sizeof mine / sizeof *mine; i++) {
        struct sigaction a = {.sa_handler = see, .sa_flags = SA_ONSTACK};
        sigaction(mine[i], &a, NULL);
    }
    hbmfs_handle reader = open_reader(d), file;
    OK(hbmfs_file_open(reader, path, &file, &why));
    struct memory m = get_memory(reader, d, 4096);
    for (unsigned i = 0; i < sizeof mine / sizeof *mine; i++) {
        if (sigaction(mine[i], NULL, &now) || now.sa_handler != see) DIE("the handler of signal %d was replaced", mine[i]);
        // To the process, so that any thread may get it, also those of the library.
        for (int k = 0; k < 20; k++) {
            seen = 0;
            if (kill(getpid(), mine[i])) DIE("kill");
            while (seen != mine[i]) OK(hbmfs_read(file, m.at, m.length, 0, 1000, 0, NULL, &why));
        }
    }
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        if (sigaction(others[i], NULL, &now) || now.sa_handler != before[i].sa_handler) DIE("signal %d got a handler", others[i]);
    free_memory(&m, d);
    OK(hbmfs_reader_close(reader, &why));
}

static long entries(const char *folder) {
    long n = 0;
    DIR *dir = opendir(folder);
    if (!dir) DIE("%s cannot be listed", folder);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static long resident_kib(void) {
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
    if (!f || kib < 0) DIE("no VmRSS");
    fclose(f);
    return kib;
}

static void one_round(hbmfs_handle reader, const struct device *d, const char *path, long i) {
    hbmfs_handle file, request;
    OK(hbmfs_file_open(reader, path, &file, &why));
    struct memory m = get_memory(reader, d, 64 << 10);
    int64_t offsets[] = {0, 1, 501};
    OK(hbmfs_gather_begin(file, m.at, m.length, offsets, 3, 200, i % 2 ? HBMFS_KEEP : HBMFS_U16_TO_I64, 0, &request, &why));
    if (i % 3) OK(hbmfs_wait(request, -1, NULL, &why));
    else if (i % 2) OK(hbmfs_cancel(request, -1, &why));
    OK(hbmfs_file_close(file, &why)); // which ends the request where nothing else has
    free_memory(&m, d);
}

// What the fake GPU counts; 0 on the host.
static long fake_count(const struct device *d, const char *name) {
    if (!d->libcuda) return 0;
    void *cuda = dlopen(d->libcuda, RTLD_NOW);
    uint64_t (*count)(void) = cuda ? (uint64_t (*)(void))dlsym(cuda, name) : NULL;
    if (!count) DIE("%s has no %s", d->libcuda, name);
    dlclose(cuda);
    return (long)count();
}

void leaks(const struct device *d, const char *path, long rounds) {
    long fds = 0, threads = 0, kib = 0, hbm = 0, events = 0;
    hbmfs_handle kept = open_reader(d);
    for (long i = 0; i < rounds; i++) {
        if (i % 20 == 0) { // a reader of its own costs its threads and pinned memory
            hbmfs_handle reader = open_reader(d);
            one_round(reader, d, path, 1);
            OK(hbmfs_reader_close(reader, &why));
        }
        one_round(kept, d, path, i);
        if (i == rounds / 4) fds = entries("/proc/self/fd"), threads = entries("/proc/self/task"), kib = resident_kib(),
                              hbm = fake_count(d, "fake_cuda_hbm"), events = fake_count(d, "fake_cuda_events");
    }
    long more_fds = entries("/proc/self/fd") - fds, more_threads = entries("/proc/self/task") - threads, more_kib = resident_kib() - kib;
    printf("%ld rounds: %ld descriptors, %ld threads and %ld KiB more than after a quarter of them\n", rounds, more_fds, more_threads, more_kib);
    if (fake_count(d, "fake_cuda_hbm") != hbm || fake_count(d, "fake_cuda_events") != events)
        DIE("%ld bytes of HBM were %ld, %ld events were %ld", fake_count(d, "fake_cuda_hbm"), hbm, fake_count(d, "fake_cuda_events"), events);
    // Threads of the runtime come and go; a leak would be one in each round.
    if (more_fds > 2 || more_threads > 16 || more_kib > 64 << 10) DIE("something leaks");
    OK(hbmfs_reader_close(kept, &why));
}
