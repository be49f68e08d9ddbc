// The sequences kernel: where sequences of tokens begin, and for each token its place in its sequence and the number of its
// document; and padding. One warp writes one sequence; lines are written whole.
//
// sequences.ptx is made from this file as gather.ptx is (tests/bench/gpu/ptx.py).

typedef unsigned long long u64;
typedef unsigned int u32;

// Sequence i is the tokens from borders[i] to borders[i + 1], of documents[i]. Both tables may lie on the host. Any grid of
// whole warps works; count is the number of sequences. Without begins, what is known of tokens is not written. Where documents[i] is below 0,
// the tokens of target, of so many bytes each (1, 2, 4 or 8), become pad; without target they stay.
extern "C" __global__ void hbmfs_sequences(const u32 *borders, const u64 *documents, u32 count, u32 *begins, u64 *positions, u64 *numbers,
                                           void *target, u32 element, u64 pad) {
    u32 lane = threadIdx.x & 31;
    u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    u32 warps = (gridDim.x * blockDim.x) >> 5;
    if (begins && warp == 0 && lane == 0) begins[count] = borders[count];
    for (u32 i = warp; i < count; i += warps) {
        u32 first = borders[i], end = borders[i + 1];
        u64 document = documents[i];
        if (begins) {
            if (lane == 0) begins[i] = first;
            for (u64 t = (u64)first + lane; t < end; t += 32) {
                positions[t] = t - first;
                numbers[t] = document;
            }
        }
        if (target && (long long)document < 0) {
            for (u64 t = (u64)first + lane; t < end; t += 32) {
                if (element == 1) ((unsigned char *)target)[t] = (unsigned char)pad;
                if (element == 2) ((unsigned short *)target)[t] = (unsigned short)pad;
                if (element == 4) ((u32 *)target)[t] = (u32)pad;
                if (element == 8) ((u64 *)target)[t] = pad;
            }
        }
    }
}
