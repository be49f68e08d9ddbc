// What the parts of the test program share.
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "libhbmfs.h"

// Where to read into: from the command line.
struct device {
    int index; // HBMFS_HOST or 0
    const char *method, *libcuda, *libcufile;
};

#define DIE(...) do { fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } while (0)
#define WANT(wanted, call) do { \
        hbmfs_failure why = {0}; \
        int32_t got_ = (call); \
        if (got_ != (wanted)) DIE("%s: %s (%d), want %s: %s", #call, hbmfs_code_name(got_), got_, hbmfs_code_name(wanted), why.text); \
        if (got_ && (why.code != got_ || !why.text[0])) DIE("%s: code %d without its reason", #call, got_); \
    } while (0)
#define OK(call) WANT(HBMFS_OK, call)

hbmfs_handle open_reader(const struct device *d);

// The code of a batch that is refused, by its begin or by the wait.
int32_t batch_brought(const hbmfs_batch *batch, hbmfs_handle *request, hbmfs_failure *why);

// Memory of the device, as a caller has it.
struct memory { hbmfs_handle handle; uint64_t at; int64_t length; };
struct memory get_memory(hbmfs_handle reader, const struct device *d, int64_t length);
void get_bytes(const struct memory *m, const struct device *d, void *to, int64_t length);
void free_memory(struct memory *m, const struct device *d);

char *whole_file(const char *path, int64_t *size);
uint64_t next_random(uint64_t *state);

// The tests.
void compare(const struct device *d, char **files, int n);
void threads(const struct device *d, const char *file);
void errors(const struct device *d, const char *file);
void cancel(const struct device *d, const char *file);
void checkpoint(const struct device *d, const char *directory);
void volume(const struct device *d, const char *directory);
void leaks(const struct device *d, const char *file, long rounds);
void forks(const struct device *d, const char *file);
void writes(const struct device *d, const char *source, const char *directory);
void kv(const struct device *d, const char *mount);
void signals(const struct device *d, const char *file);

#endif
