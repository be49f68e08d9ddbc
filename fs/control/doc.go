// Package control owns the daemon's end of the control channel: it answers the ioctls on open files, and the socket .hbmfs/control in the mount.
//
//	s := control.New(control.Options{Mount: mount, Point: "/mnt/pile", ...})
//	s.Begin()                 // or TakeOver, after another daemon
//	go s.Serve(ctx, settled)  // makes the socket, until the mount is gone
//	s.Ioctl(ctx, file, ...)   // for each ioctl of the kernel
//
// The wire format is github.com/hbmfs/hbmfs/control. The server knows its mount by [Mount], and files by [File]. It looks at the rights of a
// peer itself, since descriptors that it hands out get past the kernel's checks of the mount.
//
// Pitfalls. A session must not trust its peer: each table has a bound for each user (package shares). An answer with descriptors waits for a turn,
// since descriptors in flight count for this process. The socket keeps the filesystem alive, so it ends when the mount leaves the tree.
package control
