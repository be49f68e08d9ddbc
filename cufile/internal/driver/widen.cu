// The widening kernel: pieces as the gather kernel takes them, whose elements become wider on their way, are written twice, or
// both. The source is memory that the GPU reads over PCIe (registered page cache), or HBM, at any byte. It is read as the gather
// kernel reads it: whole lines, each once, 2 KiB in flight for each warp. They lie in shared memory then, where each lane finds
// whole elements, so that lanes beside each other write elements beside each other.
//
// widen.ptx is made from this file as gather.ptx is (tests/bench/gpu/ptx.py).

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// crew.Form makes these of where elements come from and go to.
struct Piece {
    u64 src;   // address of its first element
    u64 at;    // where that goes in the first output, in elements
    u64 bytes; // whole elements; and the two bits below
};

enum : u64 {
    notInSecond = 1ull << 63, // the first element goes to the first output only
    notInFirst = 1ull << 62   // the last element goes to the second output only
};

enum { warpsOfBlock = 8, depth = 4, chunk = 32 * depth }; // a chunk is so many words of 16 bytes

static __device__ __forceinline__ uint4 fetch(const uint4 *p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// Writes count elements that lie in shared memory to both outputs. The first one of them is element `first` of `all` of the piece.
template <typename From, typename To>
static __device__ __forceinline__ void write(const u8 *from, u32 count, u64 first, u64 all, const Piece &p, To *to, To *beside, u64 sign, u32 lane) {
    bool aligned = ((u64)from & (sizeof(From) - 1)) == 0;
#pragma unroll 2
    for (u32 i = lane; i < count; i += 32) {
        const u8 *bytes = from + i * (u32)sizeof(From);
        u64 v;
        if (aligned) v = *(const From *)bytes;
        else {
            v = 0;
#pragma unroll
            for (u32 b = 0; b < sizeof(From); b++) v |= (u64)bytes[b] << 8 * b;
        }
        v = (v ^ sign) - sign; // sign is the source's highest bit, 0 where it has none
        u64 k = first + i;
        if (k + 1 < all || !(p.bytes & notInFirst)) to[p.at + k] = (To)v;
        if (beside && (k || !(p.bytes & notInSecond))) beside[p.at + k - 1] = (To)v;
    }
}

// The rows of an output that is written twice have one element less than those that are read: element c of a row is c in the first
// output, and c - 1 in the second one. So both have the same places, one apart.
static __device__ void widen_piece(uint4 *stage, const Piece &p, void *to, void *beside, u32 from, u32 size, u64 sign, u32 lane) {
    u32 shift = __ffs(from) - 1; // it is a power of two
    u64 bytes = p.bytes & (notInFirst - 1), all = bytes >> shift;
    const uint4 *lines = (const uint4 *)(p.src & ~127ull);
    u64 skip = p.src & 127, end = skip + bytes, readable = bytes ? (end + 15) / 16 : 0, done = 0;
    for (u64 base = 0; base < readable; base += chunk) {
        uint4 v[depth];
#pragma unroll
        for (int d = 0; d < depth; d++) {
            u64 word = base + 32 * d + lane;
            v[d] = make_uint4(0, 0, 0, 0);
            if (word < readable) v[d] = fetch(lines + word);
        }
        __syncwarp(); // all have read the chunk before
        if (lane == 0 && base) stage[0] = stage[chunk]; // an element may begin in its last word
        __syncwarp();
#pragma unroll
        for (int d = 0; d < depth; d++) stage[1 + 32 * d + lane] = v[d];
        __syncwarp();
        u64 here = (base + chunk) * 16 < end ? (base + chunk) * 16 : end, until = (here - skip) >> shift;
        const u8 *at = (const u8 *)stage + (16 + skip + done * from - base * 16);
        u32 count = (u32)(until - done);
        switch (from << 4 | size) {
        case 0x11: write<u8>(at, count, done, all, p, (u8 *)to, (u8 *)beside, 0, lane); break;
        case 0x22: write<u16>(at, count, done, all, p, (u16 *)to, (u16 *)beside, 0, lane); break;
        case 0x44: write<u32>(at, count, done, all, p, (u32 *)to, (u32 *)beside, 0, lane); break;
        case 0x88: write<u64>(at, count, done, all, p, (u64 *)to, (u64 *)beside, 0, lane); break;
        case 0x14: write<u8>(at, count, done, all, p, (u32 *)to, (u32 *)beside, sign, lane); break;
        case 0x18: write<u8>(at, count, done, all, p, (u64 *)to, (u64 *)beside, sign, lane); break;
        case 0x24: write<u16>(at, count, done, all, p, (u32 *)to, (u32 *)beside, sign, lane); break;
        case 0x28: write<u16>(at, count, done, all, p, (u64 *)to, (u64 *)beside, sign, lane); break;
        case 0x48: write<u32>(at, count, done, all, p, (u64 *)to, (u64 *)beside, sign, lane); break;
        }
        done = until;
    }
    __syncwarp(); // the next piece is another's memory
}

// Any grid of blocks of 8 warps works; count is the number of pieces. Elements of `from` bytes become `size` bytes, by their
// sign if is_signed. to and beside are aligned to size; without beside there is no second output.
extern "C" __global__ void hbmfs_widen(const Piece *pieces, u32 count, void *to, void *beside, u32 from, u32 size, u32 is_signed) {
    __shared__ uint4 stage[warpsOfBlock][1 + chunk];
    u32 lane = threadIdx.x & 31;
    u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    u32 warps = (gridDim.x * blockDim.x) >> 5;
    u64 sign = is_signed ? 1ull << (8 * from - 1) : 0;
    for (u32 i = warp; i < count; i += warps) {
        Piece p = pieces[i];
        widen_piece(stage[threadIdx.x >> 5], p, to, beside, from, size, sign, lane);
    }
}
