// What the files of the layer share: the refusals with which every function begins, and structs of any version.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_cgo_export.h"
#include "libhbmfs.h"

#define HIDDEN __attribute__((visibility("hidden")))

// A forked child has this set, and its children too: of the parent's threads only the one that forked is there.
extern HIDDEN volatile int hbmfs_forked;

HIDDEN int32_t hbmfs_fail(hbmfs_failure *why, int32_t code, const char *text);
HIDDEN int32_t hbmfs_fail_forked(hbmfs_failure *why);
HIDDEN int32_t hbmfs_fail_null(hbmfs_failure *why);
HIDDEN int32_t hbmfs_fail_size(hbmfs_failure *why);

// Every function begins with one of these.
#define REFUSE_FORKED if (hbmfs_forked) return hbmfs_fail_forked(why)
#define REFUSE_NULL(condition) if (condition) return hbmfs_fail_null(why)

// The first version's structs end here: a smaller size was not set.
#define KNOWN(struct_size, type, last) ((struct_size) >= offsetof(type, last) + sizeof(((type *)0)->last))

// A struct that goes out: as much of it as the caller knows.
#define GIVE(to, from) do { \
        uint32_t size_ = (to)->struct_size; \
        (from).struct_size = size_; \
        memcpy((to), &(from), size_ < sizeof(from) ? size_ : sizeof(from)); \
    } while (0)
