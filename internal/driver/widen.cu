// The widening kernel: unsigned tokens of 2 or 4 bytes, as they crossed the link, become the 64-bit integers that
// embedding layers want. One thread makes one element; both sides are read and written in whole lines. The source may
// lie at any byte, the destination is aligned to 8.
//
// widen.ptx is made from this file as gather.ptx is (tests/gpu/ptx.py).

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// Any grid of blocks of one dimension works; size is 2 or 4, the bytes of a source element.
extern "C" __global__ void hbmfs_widen(const u8 *src, u64 *dst, u64 count, u32 size) {
    u64 step = (u64)gridDim.x * blockDim.x;
    bool aligned = ((u64)src & (size - 1)) == 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const u8 *p = src + i * size;
        u32 v;
        if (aligned && size == 2) v = *(const u16 *)p;
        else if (aligned) v = *(const u32 *)p;
        else {
            v = p[0] | (u32)p[1] << 8;
            if (size == 4) v |= (u32)p[2] << 16 | (u32)p[3] << 24;
        }
        dst[i] = v;
    }
}
