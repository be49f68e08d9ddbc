// The gather kernel: N pieces of any length and alignment, from memory that the GPU reads over PCIe (registered page
// cache), to any place in HBM. One warp copies one piece. It reads whole 128-byte lines, each once, since PCIe reads
// are not cached and a line that is touched twice crosses the bus twice; and it keeps four reads of 512 bytes in
// flight, since each takes microseconds.
//
// gather.ptx is made from this file by NVRTC 12.0 (tests/bench/gpu/ptx.py): PTX ISA 8.0 is what drivers from 525 on
// compile, and compute_70 is the oldest GPU they all know. Nothing compiles it at build time.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

// cufile/internal/mapped's pieceEntry. Addresses are the device's. Bytes may be 0.
struct Piece {
    u64 src;
    u64 dst;
    u64 bytes;
};

// The 16 bytes that begin `shift` bytes (0 to 15) into the 32 bytes lo, hi.
static __device__ __forceinline__ uint4 shifted(uint4 lo, uint4 hi, u32 shift) {
    u32 w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    if (shift & 8) {
#pragma unroll
        for (int i = 0; i < 6; i++) w[i] = w[i + 2];
    }
    if (shift & 4) {
#pragma unroll
        for (int i = 0; i < 5; i++) w[i] = w[i + 1];
    }
    u32 bits = (shift & 3) * 8;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

static __device__ __forceinline__ uint4 fetch(const uint4 *p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

static __device__ __forceinline__ uint4 from_lane(uint4 v, u32 lane) {
    const u32 all = 0xffffffffu;
    return make_uint4(__shfl_sync(all, v.x, lane), __shfl_sync(all, v.y, lane), __shfl_sync(all, v.z, lane),
                      __shfl_sync(all, v.w, lane));
}

// Writes the destination's word for word s of the source, which this lane holds in v; the next lane holds the word
// after it, and for the last lane it is in lane 0 of after. All lanes must call it.
static __device__ __forceinline__ void store(uint4 *to, u64 s, u64 first, u64 words, uint4 v, uint4 after, u32 shift, u32 lane) {
    uint4 next = from_lane(v, (lane + 1) & 31), wrapped = from_lane(after, 0);
    if (lane == 31) next = wrapped;
    if (s >= first && s - first < words) to[s - first] = shifted(v, next, shift);
}

// Writes up to 15 bytes, one a lane, that begin at byte `at` of the source. Those count that lie in the 32 words from `base` on, which the lanes hold in v.
// All lanes must call it.
static __device__ __forceinline__ void store_edge(u8 *to, u64 at, u64 count, u64 base, uint4 v, u32 lane) {
    if (!count || at / 16 > base + 31 || (at + count - 1) / 16 < base) return; // the same for all lanes
    u64 byte = at + lane, word = byte / 16 - base;
    uint4 w = from_lane(v, (u32)word & 31);
    u32 low = byte & 4 ? w.y : w.x, high = byte & 4 ? w.w : w.z;
    if (lane < count && word < 32) to[lane] = (u8)((byte & 8 ? high : low) >> (byte & 3) * 8);
}

static __device__ void copy_piece(u64 src, u64 dst, u64 bytes, u32 lane) {
    // Head: up to the first 16-byte boundary of the destination. Body: whole 16-byte words of the destination, each shifted out of two words of
    // the source. Tail: fewer than 16 bytes.
    u64 head = (16 - (dst & 15)) & 15;
    if (head > bytes) head = bytes;
    u64 words = (bytes - head) / 16, tail = (bytes - head) % 16;

    // Reading begins at a line's start, and no word is read twice, so that head and tail cost no transfer of their own. The words read are those
    // that hold bytes of the piece, so nothing outside its pages is touched. Word s of the source feeds word s - first of the destination.
    const uint4 *from = (const uint4 *)(src & ~127ull);
    uint4 *to = (uint4 *)(dst + head);
    u64 skip = src & 127, first = (skip + head) / 16, last = skip + head + words * 16;
    u32 shift = (u32)((skip + head) & 15);
    u64 readable = bytes ? (skip + bytes + 15) / 16 : 0;
    const int depth = 4;
    uint4 carry = make_uint4(0, 0, 0, 0); // of the words before base, whose last needs the one at base
    for (u64 base = 0; base < readable; base += 32 * depth) {
        uint4 lo[depth];
#pragma unroll
        for (int d = 0; d < depth; d++) {
            u64 at = base + 32 * d + lane;
            lo[d] = make_uint4(0, 0, 0, 0);
            if (at < readable) lo[d] = fetch(from + at);
        }
        if (base)
            store(to, base - 32 + lane, first, words, carry, lo[0], shift, lane);
        else
            store_edge((u8 *)dst, skip, head, 0, lo[0], lane);
#pragma unroll
        for (int d = 0; d + 1 < depth; d++) store(to, base + 32 * d + lane, first, words, lo[d], lo[d + 1], shift, lane);
#pragma unroll
        for (int d = 0; d < depth; d++) store_edge((u8 *)(to + words), last, tail, base + 32 * d, lo[d], lane);
        carry = lo[depth - 1];
        if (base + 32 * depth >= readable)
            store(to, base + 32 * (depth - 1) + lane, first, words, carry, make_uint4(0, 0, 0, 0), shift, lane);
    }
}

// Any grid of whole warps works; count is the number of pieces.
extern "C" __global__ void hbmfs_gather(const Piece *pieces, u32 count) {
    u32 lane = threadIdx.x & 31;
    u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    u32 warps = (gridDim.x * blockDim.x) >> 5;
    for (u32 i = warp; i < count; i += warps) {
        Piece p = pieces[i];
        copy_piece(p.src, p.dst, p.bytes, lane);
    }
}
