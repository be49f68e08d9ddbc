/*
 * The control channel of hbmfs, version 1, for C and C++. docs/control-protocol.md is the reference; a test of package
 * control compiles this file and compares it with what the Go side writes.
 *
 * All fields are little-endian, as is every machine that CUDA runs on: the structs are what is on the wire.
 */
#ifndef HBMFS_H
#define HBMFS_H

#include <stdint.h>
#include <sys/ioctl.h>

#ifdef __cplusplus
#define HBMFS_ASSERT(what) static_assert(what, #what)
#else
#define HBMFS_ASSERT(what) _Static_assert(what, #what)
#endif

#define HBMFS_VERSION 1

/* ---- ioctls on an open file of the mount ---- */

#define HBMFS_INFO_WHOLE  1u /* the file is one backing file from its first byte to its last */
#define HBMFS_INFO_MOUNT  2u /* some bytes exist only in the mount */
#define HBMFS_INFO_BYPASS 4u /* some bytes lie in backing files */
#define HBMFS_INFO_MORE   8u /* of a file of FILES: EXTENTS has more extents */
#define HBMFS_INFO_CACHED 16u /* backing files are a cache's: they come, and those that nobody leases go */

struct hbmfs_info { /* in: version, flags (0), the rest is ignored */
	uint32_t version;
	uint32_t flags;
	uint64_t size;
	uint32_t dtype;
	uint32_t element_size;
	int64_t tokens; /* -1 where unknown */
	uint64_t alignment;
	uint64_t runs;
	uint64_t generation;
	uint8_t epoch[16];
	uint8_t reserved[56];
};
HBMFS_ASSERT(sizeof(struct hbmfs_info) == 128);

#define HBMFS_EXTENTS_COUNT  1u /* in: no extents, only their number */
#define HBMFS_EXTENTS_TICKET 2u /* in: a ticket is wanted; out: there is one */
#define HBMFS_EXTENTS_LAST   4u /* out: the range ends with this answer */

#define HBMFS_EXTENT_MOUNT   1u /* the bytes exist only in the mount */
#define HBMFS_EXTENT_PENDING 2u /* with MOUNT: will lie in a backing file once it is on this machine */
#define HBMFS_EXTENT_ENCODED 4u /* reserved */

struct hbmfs_extent { /* piece k < count: logical + k*length of the file, offset + k*stride of the object */
	uint64_t logical;
	uint64_t length; /* of one piece */
	uint64_t offset;
	uint64_t object; /* 0 for bytes of the mount */
	uint64_t stride;
	uint64_t count;
	uint32_t flags;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_extent) == 56);

struct hbmfs_extents { /* in: version to cursor, the rest is zero; behind it the room for extents */
	uint32_t version;
	uint32_t flags;
	uint64_t offset;
	uint64_t length;
	uint64_t cursor;
	uint32_t count;
	uint32_t reserved;
	uint8_t ticket[16];
	uint8_t epoch[16];
	uint64_t total;
	uint8_t reserved2[16];
};
HBMFS_ASSERT(sizeof(struct hbmfs_extents) == 96);

struct hbmfs_range {
	uint64_t offset;
	uint64_t length;
};

struct hbmfs_prefetch { /* behind it count ranges */
	uint32_t version;
	uint32_t flags; /* 0 */
	uint32_t count;
	uint8_t reserved[20];
};
HBMFS_ASSERT(sizeof(struct hbmfs_prefetch) == 32);

#define HBMFS_MAX_EXTENTS 290
#define HBMFS_MAX_RANGES  1021

#define HBMFS_IOC_INFO        _IOC(_IOC_READ | _IOC_WRITE, 'H', 0xB0, sizeof(struct hbmfs_info))
#define HBMFS_IOC_EXTENTS(n)  _IOC(_IOC_READ | _IOC_WRITE, 'H', 0xB1, sizeof(struct hbmfs_extents) + (n) * sizeof(struct hbmfs_extent))
#define HBMFS_IOC_PREFETCH(n) _IOC(_IOC_WRITE, 'H', 0xB2, sizeof(struct hbmfs_prefetch) + (n) * sizeof(struct hbmfs_range))

/* ---- frames on the SOCK_SEQPACKET socket .hbmfs/control ---- */

#define HBMFS_MAGIC       0x464d4248u /* "HBMF" */
#define HBMFS_MAX_FRAME   65536
#define HBMFS_MAX_OBJECTS 64
#define HBMFS_MAX_PATHS   1024

enum hbmfs_type {
	HBMFS_HELLO = 1,
	HBMFS_WELCOME,
	HBMFS_REDEEM,
	HBMFS_FDS,
	HBMFS_ACK,
	HBMFS_RELEASE,
	HBMFS_LOOKUP,
	HBMFS_FILES,
	HBMFS_NAME,
	HBMFS_NAMES,
	HBMFS_STATS,
	HBMFS_PREFETCH,
	HBMFS_DONE,
	HBMFS_READERS,
	HBMFS_COUNT,
	HBMFS_ERROR,
	HBMFS_BEGIN,
	HBMFS_ADD,
	HBMFS_DRAFT,
	HBMFS_SEAL,
	HBMFS_PUBLISH,
	HBMFS_DROP
};

enum hbmfs_type_of_the_cache {
	HBMFS_RECORD = 35,
	HBMFS_TOUCHES,
	HBMFS_BRING,
	HBMFS_BROUGHT
};

struct hbmfs_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t id;
	uint32_t length; /* of the payload */
};
HBMFS_ASSERT(sizeof(struct hbmfs_header) == 16);

struct hbmfs_hello {
	uint16_t min;
	uint16_t max;
	uint32_t reader; /* the same on all connections of one reader, 0: it counts as none */
	char name[48];
};
HBMFS_ASSERT(sizeof(struct hbmfs_hello) == 56);

#define HBMFS_WELCOME_READ_ONLY 1u /* opening a descriptor again for writing is EROFS */
#define HBMFS_WELCOME_DRAFTS    2u /* the mount is a checkpoint volume: BEGIN makes a draft in it */

struct hbmfs_welcome {
	uint16_t version;
	uint16_t reserved;
	uint32_t flags;
	uint8_t epoch[16];
	uint32_t max_leases;
	uint32_t max_paths;
};
HBMFS_ASSERT(sizeof(struct hbmfs_welcome) == 32);

struct hbmfs_redeem { /* REDEEM and NAME; behind it count objects of 64 bits */
	uint8_t ticket[16];
	uint32_t count;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_redeem) == 24);

struct hbmfs_list { /* begins FDS, RELEASE, NAMES, STATS and PREFETCH */
	uint32_t count;
	uint32_t reserved;
};

struct hbmfs_object {
	uint64_t object;
	uint64_t size;
	uint64_t dev;
	uint64_t ino;
	int64_t mtime_ns;
	uint32_t error; /* why there is no descriptor */
	int32_t fd;     /* place among the message's descriptors, -1 for none */
};
HBMFS_ASSERT(sizeof(struct hbmfs_object) == 48);

struct hbmfs_ack {
	uint32_t id;
	uint32_t received;
};

#define HBMFS_LOOKUP_FDS 1u

struct hbmfs_lookup { /* behind it count lengths of 32 bits, then the paths */
	uint32_t count;
	uint32_t flags;
};

struct hbmfs_files { /* behind it the files, the extents, the objects */
	uint32_t files;
	uint32_t extents;
	uint32_t objects;
	uint32_t reserved;
};

struct hbmfs_file {
	uint64_t size;
	uint64_t generation;
	int64_t tokens;
	uint64_t alignment;
	uint64_t runs;
	uint32_t error;
	uint32_t flags;
	uint32_t dtype;
	uint32_t element_size;
	uint32_t first; /* place of its first extent */
	uint32_t extents;
};
HBMFS_ASSERT(sizeof(struct hbmfs_file) == 64);

struct hbmfs_named { /* behind the last one the names */
	uint64_t object;
	uint32_t length;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_named) == 16);

#define HBMFS_MAX_MOVED   64
#define HBMFS_REASON_SIZE 128

struct hbmfs_moved { /* behind the last one the reasons */
	uint32_t path; /* 0 direct, 1 mapped, 2 staged, 3 compat, 4 host */
	uint32_t length; /* of the reason */
	uint64_t bytes;
	uint64_t reads;
};
HBMFS_ASSERT(sizeof(struct hbmfs_moved) == 24);

struct hbmfs_count {
	uint32_t readers;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_count) == 8);

struct hbmfs_object_range {
	uint64_t object;
	uint64_t offset;
	uint64_t length;
};

#define HBMFS_MAX_NEW_FILES 64
#define HBMFS_MAX_SUMS      16000
#define HBMFS_SUM_CHUNK     (4u << 20) /* bytes that a sum is of */

#define HBMFS_BEGIN_ATTACH 1u /* the draft of this name that another process of the user has begun is wanted */

struct hbmfs_begin { /* behind it the files, the checkpoint's name, the files' names */
	uint8_t draft[16]; /* drawn at random by the client */
	uint32_t part;
	uint32_t parts;
	uint32_t umask;
	uint32_t flags;
	uint32_t files;
	uint32_t name_length;
};
HBMFS_ASSERT(sizeof(struct hbmfs_begin) == 40);

struct hbmfs_add { /* behind it the files, their names */
	uint8_t draft[16];
	uint32_t files;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_add) == 24);

struct hbmfs_new_file {
	uint64_t size;
	uint32_t name_length;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_new_file) == 16);

struct hbmfs_draft { /* with it a descriptor of each file */
	uint8_t draft[16];
	uint32_t first; /* the number of the first of them */
	uint32_t files;
};
HBMFS_ASSERT(sizeof(struct hbmfs_draft) == 24);

struct hbmfs_seal { /* behind it the sums, 32 bits each */
	uint8_t draft[16];
	uint32_t file;
	uint32_t sums;
	uint64_t first; /* the chunk that the first sum is of */
};
HBMFS_ASSERT(sizeof(struct hbmfs_seal) == 32);

struct hbmfs_publish {
	uint8_t draft[16];
	uint32_t files; /* all of the draft */
	uint32_t reserved;
	uint64_t bytes; /* of them */
};
HBMFS_ASSERT(sizeof(struct hbmfs_publish) == 32);

struct hbmfs_drop {
	uint8_t draft[16];
};

struct hbmfs_error { /* behind it the text */
	uint32_t error;
	uint32_t length;
};

#endif
