// The functions of libhbmfs.h, of KV stores.
#include "layer.h"

int32_t hbmfs_kv_open(const hbmfs_kv_options *options, hbmfs_handle *store, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!options || !store);
    if (!KNOWN(options->struct_size, hbmfs_kv_options, libcuda)) return hbmfs_fail_size(why);
    hbmfs_kv_options o = {0};
    memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    REFUSE_NULL(!o.mount || !o.namespace_);
    if (o.reserved) return hbmfs_fail(why, HBMFS_INVALID, "a reserved field is not 0");
    *store = 0;
    return hbmfs_go_kv_open(&o, store, why);
}

// export_kv.go has the same numbers.
enum { KV_PUT, KV_GET, KV_CONTAINS, KV_PIN, KV_UNPIN, KV_REMOVE };

static int32_t kv_begin(hbmfs_handle store, int32_t what, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!batch || !request);
    if (!KNOWN(batch->struct_size, hbmfs_kv_batch, tokens)) return hbmfs_fail_size(why);
    hbmfs_kv_batch b = {0};
    memcpy(&b, batch, batch->struct_size < sizeof b ? batch->struct_size : sizeof b);
    REFUSE_NULL(b.count > 0 && what != KV_UNPIN && (!b.keys || !b.key_lengths));
    REFUSE_NULL((b.count > 0 && what == KV_UNPIN && !b.tokens) || (b.part_count > 0 && !b.parts));
    *request = 0;
    return hbmfs_go_kv_begin(store, what, &b, request, why);
}

int32_t hbmfs_kv_put_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_PUT, batch, request, why);
}

int32_t hbmfs_kv_get_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_GET, batch, request, why);
}

int32_t hbmfs_kv_contains_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_CONTAINS, batch, request, why);
}

int32_t hbmfs_kv_pin_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_PIN, batch, request, why);
}

int32_t hbmfs_kv_unpin_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_UNPIN, batch, request, why);
}

int32_t hbmfs_kv_remove_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why) {
    return kv_begin(store, KV_REMOVE, batch, request, why);
}

int32_t hbmfs_kv_wait(hbmfs_handle request, int64_t timeout_ns, hbmfs_kv_result *result, int32_t *outcomes, uint64_t *tokens, int64_t count,
                      hbmfs_failure *why) {
    REFUSE_FORKED;
    if (result && !KNOWN(result->struct_size, hbmfs_kv_result, moved)) return hbmfs_fail_size(why);
    hbmfs_kv_result full = {0};
    int32_t code = hbmfs_go_kv_wait(request, timeout_ns, &full, outcomes, tokens, outcomes ? count : 0, why);
    if (code != HBMFS_TIMEOUT && result) GIVE(result, full);
    return code;
}

int32_t hbmfs_kv_clear(hbmfs_handle store, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_kv_clear(store, why);
}

int32_t hbmfs_kv_get_stats(hbmfs_handle store, hbmfs_kv_stats *stats, hbmfs_failure *why) {
    REFUSE_FORKED;
    REFUSE_NULL(!stats);
    if (!KNOWN(stats->struct_size, hbmfs_kv_stats, pinned_bytes)) return hbmfs_fail_size(why);
    hbmfs_kv_stats full = {0};
    int32_t code = hbmfs_go_kv_stats(store, &full, why);
    if (!code) GIVE(stats, full);
    return code;
}

int32_t hbmfs_kv_close(hbmfs_handle store, hbmfs_failure *why) {
    REFUSE_FORKED;
    return hbmfs_go_kv_close(store, why);
}

const char *hbmfs_kv_outcome_name(int32_t outcome) {
    static const char *const names[] = {"done", "missing", "present", "busy", "no room", "over the limit", "of another length", "damaged", "lost", "failed", "undone"};
    return outcome >= 0 && outcome < (int32_t)(sizeof names / sizeof *names) ? names[outcome] : "unknown outcome";
}
