// Package cufile moves the bytes of a file into GPU memory (HBM) or host memory by the fastest path that is proven to
// work. It counts every byte by the path that it took.
//
// A [Reader] owns one device: its threads, its pinned memory and one arena of HBM. [Reader.Open] opens a file, in an
// hbmfs mount or anywhere else; [File.Read], [File.Gather] and [File.Stream] fill the arena and return views of it.
//
//	r, err := cufile.New(ctx, cufile.Options{Device: 0})
//	f, err := r.Open(ctx, "/mnt/pile/.hbmfs/views/tokens.bin")
//	v, err := f.Gather(ctx, offsets, 8192) // N samples of 8 KiB, one after the other in HBM
//	kernel(v.Pointer(), v.Len())
//	v.Release()
//
// A file of a mount is read past FUSE: package control says where its bytes lie and hands over the backing files. They
// are asked for when a read needs them; at most Options.Descriptors stay open, for any number of shards. A read of more
// is moved in parts. Bytes that exist only in the mount, such as a synthesized header, are read there.
//
// Small rows that the GPU sees already are found in a table. Each costs the same for one shard and for a hundred
// thousand, and takes neither a lock, a descriptor nor a system call. So the Reader looks for changes beside the
// requests, every 100 ms. A file that was cut fails each request from then on, and bytes of the last 100 ms may be wrong.
//
// [Reader.OpenMany] opens thousands of small files at the cost of a few, and [File.Prefetch] announces the next reads.
// Readers of one process share registrations and descriptors of the files that they all read, also those of several GPUs.
//
// There are five paths: [Direct], [Mapped], [Staged], [Compat] and [Host]. [Auto] chooses one per request and says
// why ([View.Choice]). A path that was asked for and is not available is an error; nothing falls back in silence.
//
// Pitfalls. A View's memory is reused after Release. The arena bounds the memory that can be out at once. A Read
// larger than it is an error, and a Read that finds it full waits for a Release. libcuda, libcufile and NVML are
// loaded at run time and never unloaded. A process that forks after New must not use the Reader in the child. cuFile
// keeps its settings per process, so one process uses either Direct or Compat, not both.
package cufile
