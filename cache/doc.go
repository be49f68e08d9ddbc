// Package cache owns where a dataset's bytes come from. Today that is a directory of this machine ([Dir]), which is
// its own cache. Extents point at its files, and the kernel may read them without hbmfs.
//
// Pitfall: a directory can change under the mount. Every object is bound to the inode, size and modification time
// that it was listed with. Another file found there later is an error that wraps [ErrChanged], never bytes.
package cache
